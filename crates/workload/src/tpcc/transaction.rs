//! The five transactions of TPC-C (clauses 2.4 to 2.8): their inputs and their SQL statements.

use postgres::{Client, IsolationLevel, Statement, Transaction, types::ToSql};

use super::{
    Tpcc,
    populate::DISTRICTS,
    random::{Constants, TpccRandom, last_name},
};

/// The five kinds of TPC-C transactions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TransactionKind {
    NewOrder,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
}

impl TransactionKind {
    /// Draws a kind of transaction. Of a hundred, 45, 43, 4, 4 and 4 are of each kind (clause
    /// 5.2.3).
    pub(super) fn choose(random: &mut TpccRandom) -> Self {
        match random.within(1, 100) {
            1..=45 => Self::NewOrder,
            46..=88 => Self::Payment,
            89..=92 => Self::OrderStatus,
            93..=96 => Self::Delivery,
            _ => Self::StockLevel,
        }
    }

    /// Returns the keying time and the mean think time in seconds (clause 5.2.5.7).
    pub(super) fn pauses(self) -> [f64; 2] {
        match self {
            Self::NewOrder => [18.0, 12.0],
            Self::Payment => [3.0, 12.0],
            Self::OrderStatus => [2.0, 10.0],
            Self::Delivery | Self::StockLevel => [2.0, 5.0],
        }
    }
}

/// A parameter of an SQL statement.
type Value<'a> = &'a (dyn ToSql + Sync);

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum TransactionEnding {
    Committed,
    /// The transaction was rolled back as TPC-C demands: one in a hundred New-Orders requests an unknown item.
    RolledBack,
    /// The database lacks data that was committed, which is a fault of the storage.
    Wrong(String),
}

/// The warehouse to which a client belongs, and the district whose stock level it queries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    pub(super) warehouse: i32,
    pub(super) district: i32,
}

/// The input of a transaction, which is used again if the transaction is repeated.
#[derive(Clone, Debug)]
pub(super) enum TransactionInput {
    NewOrder { district: i32, customer: i32, lines: Vec<OrderLine> },
    Payment { district: i32, of: CustomerSelector, amount: i64 },
    OrderStatus { of: CustomerSelector },
    Delivery { carrier: i32 },
    StockLevel { threshold: i32 },
}

/// A line of an order: the item, the warehouse that supplies it, and the quantity.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderLine {
    item: i32,
    supplier: i32,
    quantity: i32,
}

/// Selects a customer: by district, and by number or last name.
#[derive(Clone, Debug)]
pub(super) struct CustomerSelector {
    warehouse: i32,
    district: i32,
    who: Who,
}

#[derive(Clone, Debug)]
enum Who {
    Number(i32),
    /// Selects by last name: of all customers with this name, in the order of their first names, the middle one.
    Name(String),
}

/// Draws the inputs of a client's transactions.
pub(super) struct TransactionInputSource<'a> {
    pub(super) tpcc: &'a Tpcc,
    pub(super) constants: &'a Constants,
    pub(super) home: Home,
}

impl TransactionInputSource<'_> {
    pub(super) fn draw(&self, kind: TransactionKind, random: &mut TpccRandom) -> TransactionInput {
        match kind {
            TransactionKind::NewOrder => self.new_order(random),
            TransactionKind::Payment => {
                let (district, home) = (any_district(random), self.home.warehouse);
                let (amount, is_remote) =
                    (i64::from(random.within(100, 500_000)), random.percent(15));
                let of = match self.other(random).filter(|_| is_remote) {
                    Some(other) => self.customer(other, any_district(random), random),
                    None => self.customer(home, district, random),
                };
                TransactionInput::Payment { district, of, amount }
            }
            TransactionKind::OrderStatus => {
                let district = any_district(random);
                TransactionInput::OrderStatus {
                    of: self.customer(self.home.warehouse, district, random),
                }
            }
            TransactionKind::Delivery => {
                TransactionInput::Delivery { carrier: random.within(1, 10) as i32 }
            }
            TransactionKind::StockLevel => {
                TransactionInput::StockLevel { threshold: random.within(10, 20) as i32 }
            }
        }
    }

    fn new_order(&self, random: &mut TpccRandom) -> TransactionInput {
        let (tpcc, constants) = (self.tpcc, self.constants);
        let district = any_district(random);
        let customer = random.uneven(1023, constants.customer, 1, tpcc.customers) as i32;
        let count = random.within(5, 15);
        let mut lines: Vec<OrderLine> = (0..count)
            .map(|_| {
                let item = random.uneven(8191, constants.item, 1, tpcc.items) as i32;
                let is_remote = random.percent(1);
                let other = self.other(random).filter(|_| is_remote);
                let supplier = other.unwrap_or(self.home.warehouse);
                OrderLine { item, supplier, quantity: random.within(1, 10) as i32 }
            })
            .collect();
        if random.percent(1) {
            // Make the last item unknown, which causes a rollback (clause 2.4.1.5).
            lines.last_mut().expect("there are five").item = tpcc.items as i32 + 1;
        }
        // Sort the lines, so that all transactions lock the rows of the stock in the same order and cannot deadlock.
        // The unknown item stays last.
        lines.sort_by_key(|line| (line.item, line.supplier));
        TransactionInput::NewOrder { district, customer, lines }
    }

    /// Returns a random warehouse other than the client's own; `None` if there is only one.
    fn other(&self, random: &mut TpccRandom) -> Option<i32> {
        if self.tpcc.warehouses == 1 {
            return None;
        }
        let other = random.within(1, self.tpcc.warehouses - 1) as i32;
        Some(if other >= self.home.warehouse { other + 1 } else { other })
    }

    /// Selects a random customer: by last name in sixty of a hundred cases, otherwise by number.
    fn customer(&self, warehouse: i32, district: i32, random: &mut TpccRandom) -> CustomerSelector {
        let customers = self.tpcc.customers;
        let who = if random.percent(60) {
            // With fewer than 1000 customers, not all last names are used.
            let names = customers.min(1000);
            Who::Name(last_name(random.uneven(255, self.constants.last_run, 0, names - 1)))
        } else {
            Who::Number(random.uneven(1023, self.constants.customer, 1, customers) as i32)
        };
        CustomerSelector { warehouse, district, who }
    }
}

fn any_district(random: &mut TpccRandom) -> i32 {
    random.within(1, DISTRICTS) as i32
}

/// Declares the struct of prepared statements: for each one a field name and the SQL text.
macro_rules! statements {
    ($($name:ident = $text:literal;)*) => {
        /// The prepared statements of all five transactions, on one database connection.
        pub(super) struct Statements { $($name: Statement,)* }

        impl Statements {
            pub(super) fn prepare(client: &mut Client) -> Result<Self, postgres::Error> {
                Ok(Self { $($name: client.prepare($text)?,)* })
            }
        }
    };
}

statements! {
    warehouse_tax = "SELECT w_tax::text FROM warehouse WHERE w_id = $1";
    buyer = "SELECT c_discount::text, c_last, c_credit FROM customer
        WHERE c_w_id = $1 AND c_d_id = $2 AND c_id = $3";
    next_order = "UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = $1 AND d_id = $2
        RETURNING d_next_o_id - 1, d_tax::text";
    insert_order = "INSERT INTO orders VALUES ($1, $2, $3, $4, localtimestamp, NULL, $5, $6)";
    insert_new = "INSERT INTO new_order VALUES ($1, $2, $3)";
    item = "SELECT (i_price * 100)::bigint, i_name, i_data FROM item WHERE i_id = $1";
    take_stock = "UPDATE stock SET
        s_quantity = CASE WHEN s_quantity >= $3 + 10 THEN s_quantity - $3 ELSE s_quantity - $3 + 91 END,
        s_ytd = s_ytd + $3, s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + $4
        WHERE s_w_id = $1 AND s_i_id = $2
        RETURNING (ARRAY[s_dist_01, s_dist_02, s_dist_03, s_dist_04, s_dist_05,
            s_dist_06, s_dist_07, s_dist_08, s_dist_09, s_dist_10])[$5], s_data";
    insert_line = "INSERT INTO order_line
        VALUES ($1, $2, $3, $4, $5, $6, NULL, $7, $8::bigint * 0.01, $9)";
    pay_warehouse = "UPDATE warehouse SET w_ytd = w_ytd + $2::bigint * 0.01 WHERE w_id = $1
        RETURNING w_name, w_street_1, w_street_2, w_city, w_state, w_zip";
    pay_district = "UPDATE district SET d_ytd = d_ytd + $3::bigint * 0.01 WHERE d_w_id = $1 AND d_id = $2
        RETURNING d_name, d_street_1, d_street_2, d_city, d_state, d_zip";
    by_name = "SELECT c_id FROM customer WHERE c_w_id = $1 AND c_d_id = $2 AND c_last = $3 ORDER BY c_first";
    pay_customer = "UPDATE customer SET
        c_balance = c_balance - $4::bigint * 0.01, c_ytd_payment = c_ytd_payment + $4::bigint * 0.01,
        c_payment_cnt = c_payment_cnt + 1,
        c_data = CASE c_credit WHEN 'BC' THEN left($5::text || c_data, 500) ELSE c_data END
        WHERE c_w_id = $1 AND c_d_id = $2 AND c_id = $3
        RETURNING c_first, c_last, c_street_1, c_city, c_phone, c_credit, c_balance::text";
    insert_history = "INSERT INTO history
        VALUES ($1, $2, $3, $4, $5, localtimestamp, $6::bigint * 0.01, $7)";
    status_customer = "SELECT c_first, c_middle, c_last, c_balance::text FROM customer
        WHERE c_w_id = $1 AND c_d_id = $2 AND c_id = $3";
    last_order = "SELECT o_id, o_ol_cnt, o_carrier_id, o_entry_d::text FROM orders
        WHERE o_w_id = $1 AND o_d_id = $2 AND o_c_id = $3 ORDER BY o_id DESC LIMIT 1";
    lines = "SELECT ol_i_id, ol_supply_w_id, ol_quantity, ol_amount::text, ol_delivery_d::text
        FROM order_line WHERE ol_w_id = $1 AND ol_d_id = $2 AND ol_o_id = $3";
    oldest_new = "DELETE FROM new_order WHERE no_w_id = $1 AND no_d_id = $2 AND no_o_id =
        (SELECT min(no_o_id) FROM new_order WHERE no_w_id = $1 AND no_d_id = $2) RETURNING no_o_id";
    deliver_order = "UPDATE orders SET o_carrier_id = $4 WHERE o_w_id = $1 AND o_d_id = $2 AND o_id = $3
        RETURNING o_c_id";
    deliver_lines = "UPDATE order_line SET ol_delivery_d = localtimestamp
        WHERE ol_w_id = $1 AND ol_d_id = $2 AND ol_o_id = $3";
    deliver_customer = "UPDATE customer SET c_delivery_cnt = c_delivery_cnt + 1, c_balance = c_balance +
        (SELECT sum(ol_amount) FROM order_line WHERE ol_w_id = $1 AND ol_d_id = $2 AND ol_o_id = $4)
        WHERE c_w_id = $1 AND c_d_id = $2 AND c_id = $3";
    next_of_district = "SELECT d_next_o_id FROM district WHERE d_w_id = $1 AND d_id = $2";
    low_stock = "SELECT count(DISTINCT s_i_id) FROM order_line
        JOIN stock ON s_w_id = $1 AND s_i_id = ol_i_id
        WHERE ol_w_id = $1 AND ol_d_id = $2 AND ol_o_id < $3 AND ol_o_id >= $3 - 20 AND s_quantity < $4";
}

/// Executes a transaction. A transaction that writes changes each row with a single UPDATE based on the row's current
/// content, so READ COMMITTED suffices. Order-Status reads twice and needs the same snapshot both times.
///
/// # Errors
/// An error of the database. The transaction has then been rolled back, and may be executed again.
pub(super) fn perform(
    client: &mut Client,
    statements: &Statements,
    home: Home,
    input: &TransactionInput,
) -> Result<TransactionEnding, postgres::Error> {
    let start = client.build_transaction();
    let mut act = match input {
        TransactionInput::OrderStatus { .. } => {
            start.isolation_level(IsolationLevel::RepeatableRead).read_only(true).start()?
        }
        _ => start.start()?,
    };
    let ending = match input {
        TransactionInput::NewOrder { district, customer, lines } => {
            new_order(&mut act, statements, [home.warehouse, *district, *customer], lines)
        }
        TransactionInput::Payment { district, of, amount } => {
            payment(&mut act, statements, home.warehouse, *district, of, *amount)
        }
        TransactionInput::OrderStatus { of } => order_status(&mut act, statements, of),
        TransactionInput::Delivery { carrier } => {
            delivery(&mut act, statements, home.warehouse, *carrier)
        }
        TransactionInput::StockLevel { threshold } => {
            stock_level(&mut act, statements, home, *threshold)
        }
    }?;
    match ending {
        TransactionEnding::Committed => act.commit()?,
        TransactionEnding::RolledBack | TransactionEnding::Wrong(_) => act.rollback()?,
    }
    Ok(ending)
}

fn new_order(
    act: &mut Transaction<'_>,
    st: &Statements,
    [warehouse, district, customer]: [i32; 3],
    lines: &[OrderLine],
) -> Result<TransactionEnding, postgres::Error> {
    act.query_one(&st.warehouse_tax, &[&warehouse])?;
    let order: i32 = act.query_one(&st.next_order, &[&warehouse, &district])?.get(0);
    act.query_one(&st.buyer, &[&warehouse, &district, &customer])?;
    let count = lines.len() as i32;
    let is_local = i32::from(lines.iter().all(|line| line.supplier == warehouse));
    let of_order: [Value<'_>; 6] = [&order, &district, &warehouse, &customer, &count, &is_local];
    act.execute(&st.insert_order, &of_order)?;
    act.execute(&st.insert_new, &[&order, &district, &warehouse])?;
    for (number, OrderLine { item, supplier, quantity }) in (1i32..).zip(lines) {
        let Some(found) = act.query_opt(&st.item, &[item])? else {
            return Ok(TransactionEnding::RolledBack);
        };
        let (price, is_remote) = (found.get::<_, i64>(0), i32::from(*supplier != warehouse));
        let taken =
            act.query_one(&st.take_stock, &[supplier, item, quantity, &is_remote, &district])?;
        let (information, amount): (String, i64) = (taken.get(0), price * i64::from(*quantity));
        act.execute(
            &st.insert_line,
            &[
                &order,
                &district,
                &warehouse,
                &number,
                item,
                supplier,
                quantity,
                &amount,
                &information,
            ],
        )?;
    }
    Ok(TransactionEnding::Committed)
}

fn payment(
    act: &mut Transaction<'_>,
    st: &Statements,
    warehouse: i32,
    district: i32,
    of: &CustomerSelector,
    amount: i64,
) -> Result<TransactionEnding, postgres::Error> {
    let name: String = act.query_one(&st.pay_warehouse, &[&warehouse, &amount])?.get(0);
    let row = act.query_one(&st.pay_district, &[&warehouse, &district, &amount])?;
    let data = format!("{name}    {}", row.get::<_, String>(0));
    let Some(customer) = find(act, st, of)? else {
        return Ok(no_such_customer(of));
    };
    let cents = format!("{}.{:02}", amount / 100, amount % 100);
    let told =
        format!("{customer} {} {} {district} {warehouse} {cents} | ", of.district, of.warehouse);
    let by: [Value<'_>; 5] = [&of.warehouse, &of.district, &customer, &amount, &told];
    act.query_one(&st.pay_customer, &by)?;
    let history: [Value<'_>; 7] =
        [&customer, &of.district, &of.warehouse, &district, &warehouse, &amount, &data];
    act.execute(&st.insert_history, &history)?;
    Ok(TransactionEnding::Committed)
}

fn order_status(
    act: &mut Transaction<'_>,
    st: &Statements,
    of: &CustomerSelector,
) -> Result<TransactionEnding, postgres::Error> {
    let Some(customer) = find(act, st, of)? else {
        return Ok(no_such_customer(of));
    };
    let CustomerSelector { warehouse, district, .. } = of;
    act.query_one(&st.status_customer, &[warehouse, district, &customer])?;
    // Each customer got an order when the tables were filled, so a missing order is a fault of the storage.
    let Some(order) = act.query_opt(&st.last_order, &[warehouse, district, &customer])? else {
        return Ok(TransactionEnding::Wrong(format!("customer {customer} has no order: {of:?}")));
    };
    let (number, count): (i32, i32) = (order.get(0), order.get(1));
    let lines = act.query(&st.lines, &[warehouse, district, &number])?.len();
    if lines as i32 != count {
        let what = format!("order {number} has {count} lines, and {lines} were found: {of:?}");
        return Ok(TransactionEnding::Wrong(what));
    }
    Ok(TransactionEnding::Committed)
}

fn delivery(
    act: &mut Transaction<'_>,
    st: &Statements,
    warehouse: i32,
    carrier: i32,
) -> Result<TransactionEnding, postgres::Error> {
    for district in 1..=DISTRICTS as i32 {
        // Skip a district without new orders (clause 2.7.4.2).
        let Some(oldest) = act.query_opt(&st.oldest_new, &[&warehouse, &district])? else {
            continue;
        };
        let order: i32 = oldest.get(0);
        let row = act.query_one(&st.deliver_order, &[&warehouse, &district, &order, &carrier])?;
        let customer: i32 = row.get(0);
        act.execute(&st.deliver_lines, &[&warehouse, &district, &order])?;
        act.execute(&st.deliver_customer, &[&warehouse, &district, &customer, &order])?;
    }
    Ok(TransactionEnding::Committed)
}

fn stock_level(
    act: &mut Transaction<'_>,
    st: &Statements,
    Home { warehouse, district }: Home,
    threshold: i32,
) -> Result<TransactionEnding, postgres::Error> {
    let next: i32 = act.query_one(&st.next_of_district, &[&warehouse, &district])?.get(0);
    act.query_one(&st.low_stock, &[&warehouse, &district, &next, &threshold])?;
    Ok(TransactionEnding::Committed)
}

/// Returns the number of the selected customer, or `None` if there is no customer with the name.
fn find(
    act: &mut Transaction<'_>,
    st: &Statements,
    of: &CustomerSelector,
) -> Result<Option<i32>, postgres::Error> {
    let name = match &of.who {
        Who::Number(number) => return Ok(Some(*number)),
        Who::Name(name) => name,
    };
    let all = act.query(&st.by_name, &[&of.warehouse, &of.district, name])?;
    // With n customers of this name, the one at position n/2, rounded up (clause 2.5.2.2).
    Ok((!all.is_empty()).then(|| all[(all.len() - 1) / 2].get(0)))
}

/// Returns an error for a customer that was not found. In this case the storage has lost data: transactions only use
/// names that were assigned when the tables were filled.
fn no_such_customer(of: &CustomerSelector) -> TransactionEnding {
    TransactionEnding::Wrong(format!("there is no such customer: {of:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_and_its_inputs_are_those_of_the_standard() {
        let mut random = TpccRandom::new(2);
        let constants = Constants::choose(&mut random);
        let tpcc = Tpcc { warehouses: 3, ..Tpcc::default() };
        let home = Home { warehouse: 2, district: 1 };
        let source = TransactionInputSource { tpcc: &tpcc, constants: &constants, home };
        let (mut orders, mut lines, mut remote, mut unused) = (0, 0, 0, 0);
        let (mut payments, mut elsewhere, mut by_name) = (0, 0, 0);
        for _ in 0..40_000 {
            let kind = TransactionKind::choose(&mut random);
            match source.draw(kind, &mut random) {
                TransactionInput::NewOrder { lines: of, .. } => {
                    orders += 1;
                    lines += of.len();
                    remote += of.iter().filter(|line| line.supplier != 2).count();
                    unused += of.iter().filter(|line| line.item > 100_000).count();
                    assert!((5..=15).contains(&of.len()));
                }
                TransactionInput::Payment { of, .. } => {
                    payments += 1;
                    elsewhere += usize::from(of.warehouse != 2);
                    by_name += usize::from(matches!(of.who, Who::Name(_)));
                    assert!((1..=3).contains(&of.warehouse));
                }
                _ => (),
            }
        }
        let near = |is: usize, of: usize, percent: f64| {
            let is = 100.0 * is as f64 / of as f64;
            assert!((is - percent).abs() < percent * 0.1 + 0.25, "{is} is not {percent}");
        };
        near(orders, 40_000, 45.0);
        near(payments, 40_000, 43.0);
        near(lines, orders, 1000.0);
        near(remote, lines, 1.0);
        near(unused, orders, 1.0);
        near(elsewhere, payments, 15.0);
        near(by_name, payments, 60.0);
    }
}
