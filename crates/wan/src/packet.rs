//! Packets of a TUN device: an offload header (virtio 1.2, 5.1.6), then the IP packet. A TCP packet may have many
//! segments, which become separate packets here: each is lost, delayed and changed separately. Segments that arrive at
//! nearly the same time are delivered as one packet again.

use std::{ops::Range, sync::Arc};

/// Length of the offload header before the IP packet, `struct virtio_net_hdr`.
pub(crate) const OFFLOAD_HEADER: usize = 10;
/// Longest packet of a device: the offload header, an IPv6 header, and the maximum of the length field of IPv6.
pub(crate) const LONGEST: usize = OFFLOAD_HEADER + 40 + 65_535;

/// A packet that the emulator has read from a device, with one or more segments.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    /// The packet, preceded by its offload header.
    bytes: Arc<[u8]>,
    /// The split into segments; `None` for a single packet.
    split: Option<Split>,
}

/// The split of a TCP packet into segments.
#[derive(Clone, Copy, Debug)]
struct Split {
    is_v4: bool,
    /// Offset of the TCP header, which is the length of the IP header.
    transport: usize,
    /// Length of the IP and TCP headers.
    headers: usize,
    /// Length of the data in each segment except the last.
    size: usize,
}

/// The device has returned a packet that is invalid or of an unknown kind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct MalformedPacket;

/// Flag: the checksum has to be computed from `CHECKSUM_START` on, and stored at `CHECKSUM_OFFSET` from there.
const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
/// Flag of segments with congestion notification (ECN); the other bits have the kind of segments.
const GSO_ECN: u8 = 0x80;
const GSO_SIZE: usize = 4;
const CHECKSUM_START: usize = 6;
const CHECKSUM_OFFSET: usize = 8;
/// Offsets of the checksum in a TCP header and in a UDP header.
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
/// TCP flags that only the first segment may have, and flags that only the last segment may have.
const CWR: u8 = 0x80;
const FIN_PSH: u8 = 0x09;
const TCP: u32 = 6;

impl Packet {
    /// Parses a packet of a device.
    ///
    /// # Errors
    /// If it is too short, or has segments of a kind that was not requested.
    pub fn parse(bytes: &[u8]) -> Result<Self, MalformedPacket> {
        let ip = bytes.get(OFFLOAD_HEADER..).ok_or(MalformedPacket)?;
        let shortest = match ip.first().ok_or(MalformedPacket)? >> 4 {
            4 => 20,
            6 => 40,
            _ => return Err(MalformedPacket),
        };
        if ip.len() < shortest {
            return Err(MalformedPacket);
        }
        let split = match bytes[1] & !GSO_ECN {
            GSO_NONE => None,
            GSO_TCP4 if shortest == 20 => Some(Split::of(bytes, true)?),
            GSO_TCP6 if shortest == 40 => Some(Split::of(bytes, false)?),
            _ => return Err(MalformedPacket),
        };
        Ok(Self { bytes: bytes.into(), split })
    }

    /// Returns the number of segments of this packet. Each is a packet of its own on the link.
    pub fn segments(&self) -> usize {
        self.split.map_or(1, |split| self.data(&split).div_ceil(split.size).max(1))
    }

    /// Returns the length of segment number `segment` in bytes, including its IP header.
    pub fn segment_bytes(&self, segment: usize) -> u64 {
        let bytes = match &self.split {
            None => self.bytes.len() - OFFLOAD_HEADER,
            Some(split) => split.headers + self.part(split, segment..segment + 1).len(),
        };
        bytes as u64
    }

    /// Returns the segments in `run` as one packet for the device: its headers and its data. The headers of a part of a
    /// packet are written to `head`.
    pub fn run<'a>(&'a self, run: Range<usize>, head: &'a mut Vec<u8>) -> [&'a [u8]; 2] {
        let Some(split) = self.split.filter(|_| run != (0..self.segments())) else {
            return [&self.bytes, &[]];
        };
        let part = self.part(&split, run.clone());
        let from = OFFLOAD_HEADER + split.headers;
        let (data, is_last) = (&self.bytes[from..][part.clone()], part.end == self.data(&split));
        head.clear();
        head.extend_from_slice(&self.bytes[..from]);
        if run.len() == 1 {
            head[1] = GSO_NONE;
            head[GSO_SIZE..GSO_SIZE + 2].fill(0);
        }
        split.rewrite(&mut head[OFFLOAD_HEADER..], run.start, part, is_last);
        [head, data]
    }

    /// Returns one segment with one bit changed after the IP header, that is, in the transport header or the
    /// data. The checksum stays that of the original.
    pub fn changed(&self, segment: usize, bit: u64) -> Vec<u8> {
        let mut head = Vec::new();
        let mut bytes = self.run(segment..segment + 1, &mut head).concat();
        complete_checksum(&mut bytes);
        let ip = &mut bytes[OFFLOAD_HEADER..];
        let header = if ip[0] >> 4 == 4 { usize::from(ip[0] & 15) * 4 } else { 40 };
        if let Some(rest @ [_, ..]) = ip.get_mut(header..) {
            let bit = bit % (rest.len() as u64 * 8);
            rest[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        bytes
    }

    /// Returns the length of the data after the headers.
    fn data(&self, split: &Split) -> usize {
        self.bytes.len() - OFFLOAD_HEADER - split.headers
    }

    /// Returns the byte range of the data of the segments in `run`, within the data of the packet.
    fn part(&self, split: &Split, run: Range<usize>) -> Range<usize> {
        let end = self.data(split);
        (run.start * split.size).min(end)..(run.end * split.size).min(end)
    }
}

impl Split {
    fn of(bytes: &[u8], is_v4: bool) -> Result<Self, MalformedPacket> {
        let half = |at: usize| usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
        let ip = &bytes[OFFLOAD_HEADER..];
        let (transport, size) = (half(CHECKSUM_START), half(GSO_SIZE));
        let shortest = if is_v4 { usize::from(ip[0] & 15) * 4 } else { 40 };
        let is_known = bytes[0] & NEEDS_CHECKSUM != 0
            && half(CHECKSUM_OFFSET) == TCP_CHECKSUM
            && size > 0
            && shortest >= 20
            && if is_v4 { transport == shortest } else { transport >= shortest };
        let tcp = ip.get(transport..).filter(|tcp| is_known && tcp.len() >= 20);
        let tcp_header = usize::from(tcp.ok_or(MalformedPacket)?[12] >> 4) * 4;
        let headers = transport + tcp_header;
        if tcp_header < 20 || headers > ip.len() {
            return Err(MalformedPacket);
        }
        Ok(Self { is_v4, transport, headers, size })
    }

    /// Makes the headers of a run of segments that begins with number `first`.
    fn rewrite(&self, ip: &mut [u8], first: usize, part: Range<usize>, is_last: bool) {
        let (header, tcp) = ip.split_at_mut(self.transport);
        let transport = tcp.len() + part.len();
        let addresses = if self.is_v4 {
            put(header, 2, (self.transport + transport) as u16);
            let identification = u16::from_be_bytes([header[4], header[5]]);
            put(header, 4, identification.wrapping_add(first as u16));
            put(header, 10, 0);
            let checksum = !fold(sum(header));
            put(header, 10, checksum);
            &header[12..20]
        } else {
            put(header, 4, (self.transport - 40 + transport) as u16);
            &header[8..40]
        };
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        tcp[4..8].copy_from_slice(&sequence.wrapping_add(part.start as u32).to_be_bytes());
        if first > 0 {
            tcp[13] &= !CWR;
        }
        if !is_last {
            tcp[13] &= !FIN_PSH;
        }
        // Write the checksum of the pseudo header only (RFC 9293, 3.1): the device adds that of the data.
        put(tcp, TCP_CHECKSUM, fold(sum(addresses) + TCP + transport as u32));
    }
}

/// Computes the checksum that the offload header leaves open. Does nothing if it points beyond the packet.
fn complete_checksum(bytes: &mut [u8]) {
    let half = |at: usize| usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
    let (start, offset) = (half(CHECKSUM_START), half(CHECKSUM_OFFSET));
    let is_left = bytes[0] & NEEDS_CHECKSUM != 0;
    bytes[..OFFLOAD_HEADER].fill(0);
    let Some(rest) = bytes[OFFLOAD_HEADER..].get_mut(start..).filter(|_| is_left) else { return };
    if offset + 2 > rest.len() {
        return;
    }
    let checksum = !fold(sum(rest));
    // Avoid 0, which means in UDP that the packet has no checksum (RFC 768).
    let is_none = checksum == 0 && offset == UDP_CHECKSUM;
    put(rest, offset, if is_none { 0xffff } else { checksum });
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The Internet checksum (RFC 1071). A packet of 65,575 bytes does not overflow the sum.
fn sum(bytes: &[u8]) -> u32 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let whole: u32 = pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    whole + rest.first().map_or(0, |last| u32::from(*last) << 8)
}

fn fold(sum: u32) -> u16 {
    let once = (sum >> 16) + (sum & 0xffff);
    ((once >> 16) + (once & 0xffff)) as u16
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const SIZE: usize = 1000;

    /// Returns 3500 bytes of TCP data in four segments, in the form in which a TUN device returns them.
    pub fn many(is_v4: bool) -> Vec<u8> {
        let ip_header = if is_v4 { 20 } else { 40 };
        let mut bytes = vec![0; OFFLOAD_HEADER];
        bytes[0] = NEEDS_CHECKSUM;
        bytes[1] = if is_v4 { GSO_TCP4 } else { GSO_TCP6 };
        bytes[GSO_SIZE..GSO_SIZE + 2].copy_from_slice(&(SIZE as u16).to_ne_bytes());
        bytes[CHECKSUM_START..][..2].copy_from_slice(&(ip_header as u16).to_ne_bytes());
        bytes[CHECKSUM_OFFSET..][..2].copy_from_slice(&(TCP_CHECKSUM as u16).to_ne_bytes());
        let mut ip = vec![0; ip_header];
        let tcp_and_data = 32 + 3500;
        if is_v4 {
            ip[0] = 0x45;
            put(&mut ip, 2, (ip_header + tcp_and_data) as u16);
            put(&mut ip, 4, 0xfffe);
            ip[9] = 6;
            ip[12..20].copy_from_slice(&[10, 99, 0, 1, 10, 99, 0, 2]);
        } else {
            ip[0] = 0x60;
            put(&mut ip, 4, tcp_and_data as u16);
            ip[6] = 6;
            ip[23] = 1;
            ip[39] = 2;
        }
        bytes.extend(ip);
        let mut tcp = [0; 32];
        tcp[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
        tcp[12] = 0x80;
        tcp[13] = CWR | FIN_PSH | 0x10;
        bytes.extend(tcp);
        bytes.extend((0..3500_u32).map(|n| (n ^ (n >> 8)) as u8));
        bytes
    }

    /// Returns true if the checksum is correct. Computes it as a receiver does: over pseudo header, transport
    /// header and data.
    fn is_sound(bytes: &[u8]) -> bool {
        let mut bytes = bytes.to_vec();
        complete_checksum(&mut bytes);
        let ip = &bytes[OFFLOAD_HEADER..];
        let (header, addresses) = if ip[0] >> 4 == 4 { (20, 12..20) } else { (40, 8..40) };
        let rest = &ip[header..];
        let pseudo = sum(&ip[addresses]) + TCP + rest.len() as u32;
        let is_header_sound = header == 40 || fold(sum(&ip[..20])) == 0xffff;
        is_header_sound && fold(sum(rest) + u32::from(fold(pseudo))) == 0xffff
    }

    #[test]
    fn each_segment_is_a_packet_of_its_own() {
        for is_v4 in [true, false] {
            let whole = many(is_v4);
            let packet = Packet::parse(&whole).unwrap();
            assert_eq!(packet.segments(), 4);
            let headers = if is_v4 { 52 } else { 72 };
            let lengths: Vec<u64> = (0..4).map(|n| packet.segment_bytes(n) - headers).collect();
            assert_eq!(lengths, [1000, 1000, 1000, 500]);
            let mut data = Vec::new();
            for (n, length) in lengths.into_iter().enumerate() {
                let mut head = Vec::new();
                let bytes = packet.run(n..n + 1, &mut head).concat();
                assert!(is_sound(&bytes), "{n} of v4 {is_v4}");
                let again = Packet::parse(&bytes).unwrap();
                assert_eq!((again.segments(), again.segment_bytes(0)), (1, length + headers));
                let tcp = &bytes[OFFLOAD_HEADER + headers as usize - 32..];
                let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
                assert_eq!(sequence, u32::MAX.wrapping_add(n as u32 * 1000));
                assert_eq!(tcp[13] & CWR != 0, n == 0);
                assert_eq!(tcp[13] & FIN_PSH != 0, n == 3);
                if is_v4 {
                    let ip = &bytes[OFFLOAD_HEADER..];
                    assert_eq!(u16::from_be_bytes([ip[2], ip[3]]) as usize, ip.len());
                    assert_eq!(
                        u16::from_be_bytes([ip[4], ip[5]]),
                        0xfffe_u16.wrapping_add(n as u16)
                    );
                }
                data.extend_from_slice(&tcp[32..]);
            }
            assert!(data == whole[whole.len() - 3500..]);
        }
    }

    #[test]
    fn consecutive_segments_stay_in_one_packet() {
        for is_v4 in [true, false] {
            let whole = many(is_v4);
            let packet = Packet::parse(&whole).unwrap();
            let mut head = Vec::new();
            assert_eq!(packet.run(0..4, &mut head).concat(), whole);
            let bytes = packet.run(1..3, &mut head).concat();
            let middle = Packet::parse(&bytes).unwrap();
            assert_eq!(middle.segments(), 2);
            let mut other = Vec::new();
            let second = middle.run(1..2, &mut other).concat();
            assert_eq!(second, packet.run(2..3, &mut Vec::new()).concat());
        }
    }

    #[test]
    fn a_changed_bit_is_found_by_the_checksum() {
        for is_v4 in [true, false] {
            let packet = Packet::parse(&many(is_v4)).unwrap();
            let mut head = Vec::new();
            let mut sound = packet.run(1..2, &mut head).concat();
            complete_checksum(&mut sound);
            for bit in [0, 77, 8191, u64::MAX] {
                let changed = packet.changed(1, bit);
                let differ = sound.iter().zip(&changed).map(|(a, b)| (a ^ b).count_ones());
                assert_eq!((differ.sum::<u32>(), changed.len()), (1, sound.len()));
                assert!(!is_sound(&changed));
            }
        }
    }

    #[test]
    fn a_packet_without_offload_is_not_changed() {
        let mut bytes = vec![0; OFFLOAD_HEADER + 28];
        bytes[OFFLOAD_HEADER] = 0x45;
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!((packet.segments(), packet.segment_bytes(0)), (1, 28));
        assert_eq!(packet.run(0..1, &mut Vec::new()).concat(), bytes);
        // The packet has no bytes after its header, so no bit is changed.
        bytes.truncate(OFFLOAD_HEADER + 20);
        assert_eq!(Packet::parse(&bytes).unwrap().changed(0, 9), bytes);
    }

    #[test]
    fn malformed_packets_are_refused_or_harmless() {
        let mut rng = sim::Rng::new(1);
        for is_v4 in [true, false] {
            let whole = many(is_v4);
            for cut in 0..150 {
                let _ = Packet::parse(&whole[..cut]).map(|packet| packet.changed(0, 1));
            }
            for _ in 0..20_000 {
                let mut bytes = whole[..rng.within(30..whole.len() as u64) as usize].to_vec();
                for _ in 0..rng.within(1..6) {
                    let at = rng.below(90.min(bytes.len() as u64)) as usize;
                    bytes[at] = rng.next_u64() as u8;
                }
                let Ok(packet) = Packet::parse(&bytes) else { continue };
                let last = packet.segments() - 1;
                assert!(packet.segment_bytes(last) as usize <= bytes.len());
                packet.run(last..last + 1, &mut Vec::new());
                packet.changed(last, rng.next_u64());
            }
        }
        assert!(Packet::parse(&[]).is_err());
        assert!(Packet::parse(&[0; 64]).is_err());
    }
}
