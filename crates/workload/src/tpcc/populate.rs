//! The initial content of the tables (clause 4.3.3.1).

use std::{fmt::Display, io::Write};

use postgres::{Client, CopyInWriter};

use super::{
    Error, Tpcc, failed,
    random::{Constants, TpccRandom, last_name},
    schema,
};

/// Percentage of orders that are not delivered yet. In the standard, these are the last 900 of
/// 3000.
const NEW_PERCENT: u32 = 30;
/// Number of different last names. The first 1000 customers of a district have one each.
const NAMES: u32 = 1000;
/// Districts of a warehouse, fixed by the standard.
pub(super) const DISTRICTS: u32 = 10;

/// Creates the tables, fills them with rows, and then creates their keys.
pub(super) fn populate(
    client: &mut Client,
    tpcc: &Tpcc,
    constants: &Constants,
    random: &mut TpccRandom,
    progress: &dyn Fn(f64),
) -> Result<(), Error> {
    client.batch_execute(schema::TABLES).map_err(failed)?;
    let now: String = client.query_one("SELECT localtimestamp::text", &[]).map_err(failed)?.get(0);
    let mut fill = TpccPopulation { client, tpcc, constants, random, now };
    fill.items()?;
    // The unit of progress is a warehouse. Creating the keys takes as long as 0.3 warehouses, and 0.3 more for each
    // warehouse.
    let parts = f64::from(tpcc.warehouses) * 1.3 + 0.3;
    for warehouse in 1..=tpcc.warehouses {
        fill.warehouse(warehouse)?;
        progress(f64::from(warehouse) / parts);
    }
    // Execute the statements one by one: some of them cannot run in a transaction with others.
    for statement in schema::KEYS.split(';').filter(|text| !text.trim().is_empty()) {
        fill.client.batch_execute(statement).map_err(failed)?;
    }
    progress(1.0);
    Ok(())
}

struct TpccPopulation<'a> {
    client: &'a mut Client,
    tpcc: &'a Tpcc,
    constants: &'a Constants,
    random: &'a mut TpccRandom,
    now: String,
}

/// Writes rows into a table in the format of PostgreSQL's COPY.
struct Rows<'a>(CopyInWriter<'a>);

impl<'a> Rows<'a> {
    fn of(client: &'a mut Client, table: &str) -> Result<Self, Error> {
        Ok(Self(client.copy_in(&format!("COPY {table} FROM STDIN")).map_err(failed)?))
    }

    /// Adds a row. A value `\N` is a null. Values must not contain a tab, a newline or a backslash.
    fn row(&mut self, values: &[&dyn Display]) -> Result<(), Error> {
        let mut write = || {
            for (number, value) in values.iter().enumerate() {
                write!(self.0, "{}{value}", if number == 0 { "" } else { "\t" })?;
            }
            self.0.write_all(b"\n")
        };
        write().map_err(Error::system("fill the database"))
    }

    fn finish(self) -> Result<(), Error> {
        self.0.finish().map(drop).map_err(failed)
    }
}

/// Formats a number of hundredths (two places) or ten-thousandths (four places) as a decimal
/// number.
fn decimal(number: u32, places: usize) -> String {
    let scale = 10u32.pow(places as u32);
    format!("{}.{:0places$}", number / scale, number % scale)
}

/// Returns a random address: two streets, a city, a state and a zip code (clause 4.3.2.7).
fn address(random: &mut TpccRandom) -> [String; 5] {
    let mut street = || random.letters(10, 20);
    let [one, two, city] = [street(), street(), street()];
    [one, two, city, random.letters(2, 2), random.digits(4) + "11111"]
}

impl TpccPopulation<'_> {
    fn items(&mut self) -> Result<(), Error> {
        let Self { client, random, .. } = self;
        let mut rows = Rows::of(client, "item")?;
        for item in 1..=self.tpcc.items {
            let (image, name) = (random.within(1, 10_000), random.letters(14, 24));
            let price = decimal(random.within(100, 10_000), 2);
            rows.row(&[&item, &image, &name, &price, &random.data()])?;
        }
        rows.finish()
    }

    fn warehouse(&mut self, warehouse: u32) -> Result<(), Error> {
        let Self { client, random, .. } = self;
        let mut rows = Rows::of(client, "warehouse")?;
        let [one, two, city, state, zip] = address(random);
        let (name, tax) = (random.letters(6, 10), decimal(random.within(0, 2000), 4));
        rows.row(&[&warehouse, &name, &one, &two, &city, &state, &zip, &tax, &"300000.00"])?;
        rows.finish()?;
        self.stock(warehouse)?;
        for district in 1..=DISTRICTS {
            self.district(warehouse, district)?;
        }
        Ok(())
    }

    fn stock(&mut self, warehouse: u32) -> Result<(), Error> {
        let Self { client, random, .. } = self;
        let mut rows = Rows::of(client, "stock")?;
        for item in 1..=self.tpcc.items {
            let quantity = random.within(10, 100);
            let districts = [(); 10].map(|()| random.letters(24, 24));
            let data = random.data();
            let mut row: Vec<&dyn Display> = vec![&item, &warehouse, &quantity];
            row.extend(districts.iter().map(|text| text as &dyn Display));
            row.extend([&0 as &dyn Display, &0, &0, &data]);
            rows.row(&row)?;
        }
        rows.finish()
    }

    fn district(&mut self, warehouse: u32, district: u32) -> Result<(), Error> {
        let Self { client, random, tpcc, .. } = self;
        let mut rows = Rows::of(client, "district")?;
        let [one, two, city, state, zip] = address(random);
        let (name, tax) = (random.letters(6, 10), decimal(random.within(0, 2000), 4));
        // The year-to-date payments (`ytd`) of a district: ten districts sum up to the 300,000.00 of the warehouse
        // (clause 3.3.2.1).
        let (ytd, next) = ("30000.00", tpcc.customers + 1);
        rows.row(&[
            &district, &warehouse, &name, &one, &two, &city, &state, &zip, &tax, &ytd, &next,
        ])?;
        rows.finish()?;
        self.customers(warehouse, district)?;
        self.history(warehouse, district)?;
        self.orders(warehouse, district)
    }

    fn customers(&mut self, warehouse: u32, district: u32) -> Result<(), Error> {
        let Self { client, random, tpcc, constants, now } = self;
        let mut rows = Rows::of(client, "customer")?;
        for customer in 1..=tpcc.customers {
            let last = last_name(if customer <= NAMES {
                customer - 1
            } else {
                random.uneven(255, constants.last_load, 0, NAMES - 1)
            });
            let [one, two, city, state, zip] = address(random);
            let (first, phone) = (random.letters(8, 16), random.digits(16));
            let credit = if random.percent(10) { "BC" } else { "GC" };
            let discount = decimal(random.within(0, 5000), 4);
            let data = random.letters(300, 500);
            rows.row(&[
                &customer,
                &district,
                &warehouse,
                &first,
                &"OE",
                &last,
                &one,
                &two,
                &city,
                &state,
                &zip,
                &phone,
                now,
                &credit,
                &"50000.00",
                &discount,
                &"-10.00",
                &"10.00",
                &1,
                &0,
                &data,
            ])?;
        }
        rows.finish()
    }

    fn history(&mut self, warehouse: u32, district: u32) -> Result<(), Error> {
        let Self { client, random, tpcc, now, .. } = self;
        let mut rows = Rows::of(client, "history")?;
        for customer in 1..=tpcc.customers {
            let data = random.letters(12, 24);
            rows.row(&[
                &customer, &district, &warehouse, &district, &warehouse, now, &"10.00", &data,
            ])?;
        }
        rows.finish()
    }

    /// Adds one order for each customer of a district, in random order of the customers. The last orders are not
    /// delivered yet.
    fn orders(&mut self, warehouse: u32, district: u32) -> Result<(), Error> {
        let Self { client, random, tpcc, now, .. } = self;
        let first_new = tpcc.customers - tpcc.customers * NEW_PERCENT / 100 + 1;
        let customers = random.permutation(tpcc.customers);
        let lines: Vec<u32> = customers.iter().map(|_| random.within(5, 15)).collect();
        let mut rows = Rows::of(client, "orders")?;
        for (order, (customer, lines)) in (1..).zip(customers.iter().zip(&lines)) {
            let carrier = random.within(1, 10).to_string();
            let carrier = if order < first_new { &carrier } else { "\\N" };
            rows.row(&[&order, &district, &warehouse, customer, now, &carrier, lines, &1])?;
        }
        rows.finish()?;
        let mut rows = Rows::of(client, "order_line")?;
        for (order, lines) in (1..).zip(&lines) {
            for line in 1..=*lines {
                let item = random.within(1, tpcc.items);
                let is_new = order >= first_new;
                let amount = if is_new { random.within(1, 999_999) } else { 0 };
                let delivered = if is_new { "\\N" } else { &**now };
                let information = random.letters(24, 24);
                rows.row(&[
                    &order,
                    &district,
                    &warehouse,
                    &line,
                    &item,
                    &warehouse,
                    &delivered,
                    &5,
                    &decimal(amount, 2),
                    &information,
                ])?;
            }
        }
        rows.finish()?;
        let mut rows = Rows::of(client, "new_order")?;
        for order in first_new..=tpcc.customers {
            rows.row(&[&order, &district, &warehouse])?;
        }
        rows.finish()
    }
}
