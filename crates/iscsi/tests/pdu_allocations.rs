//! Checks that the PDUs of the data path are parsed and encoded without allocating memory.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use bytes::Bytes;
use iscsi::{
    Itt, Pdu, Ttt,
    pdu::{DataIn, DataInStatus, DataOut, Numbers, Residual, ScsiCommand, ScsiResponse},
};
use scsi::{Cdb, Lun};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller guarantees what the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees what the system's allocator requires.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn pdus_of_the_data_path_need_no_allocation() {
    let data = Bytes::from(vec![7; 4096]);
    let command = ScsiCommand {
        write: true,
        cdb: Cdb::new(&[0x2a; 16]),
        expected_data_transfer_length: 4096,
        data: data.clone(),
        ..ScsiCommand::default()
    };
    let data_out = DataOut {
        is_final: true,
        lun: Lun(0),
        itt: Itt(1),
        ttt: Ttt(2),
        exp_stat_sn: Default::default(),
        data_sn: 0,
        buffer_offset: 0,
        data: data.clone(),
    };
    let data_in = DataIn {
        is_final: true,
        acknowledge: false,
        status: Some(DataInStatus { status: 0, residual: Residual::None }),
        lun: Lun(0),
        itt: Itt(1),
        ttt: Ttt::NONE,
        numbers: Numbers::default(),
        data_sn: 0,
        buffer_offset: 0,
        data: [data].into(),
    };
    let pdus = [
        Pdu::ScsiCommand(command),
        Pdu::DataOut(data_out),
        Pdu::DataIn(data_in),
        Pdu::ScsiResponse(ScsiResponse::default()),
    ];
    // Clone the PDUs once before counting: the first clone of a `Bytes` makes it shared, which
    // allocates.
    let copies = pdus.clone();
    for (pdu, copy) in pdus.into_iter().zip(copies) {
        let before = ALLOCATIONS.get();
        let (bhs, ahs, mut segment) = copy.encode();
        let parsed = Pdu::parse(&bhs, &ahs, segment.pop().unwrap_or_default());
        assert_eq!(ALLOCATIONS.get() - before, 0, "{pdu:?}");
        assert_eq!(parsed, Ok(pdu));
    }
}
