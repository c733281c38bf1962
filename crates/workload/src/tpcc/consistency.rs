//! Checks the tables: the consistency conditions of the standard (clause 3.3.2), and after a run the totals of the
//! committed transactions.

use postgres::Client;

use super::{Error, failed, terminal::TerminalResult};

/// Consistency conditions 1 to 4. Each query returns the number of rows that violate its condition.
const CONDITIONS: [&str; 4] = [
    "SELECT count(*) FROM warehouse
     WHERE w_ytd IS DISTINCT FROM (SELECT sum(d_ytd) FROM district WHERE d_w_id = w_id)",
    "SELECT count(*) FROM district
     LEFT JOIN (SELECT o_w_id, o_d_id, max(o_id) AS last FROM orders GROUP BY 1, 2) o
         ON o_w_id = d_w_id AND o_d_id = d_id
     LEFT JOIN (SELECT no_w_id, no_d_id, max(no_o_id) AS last FROM new_order GROUP BY 1, 2) n
         ON no_w_id = d_w_id AND no_d_id = d_id
     WHERE d_next_o_id - 1 IS DISTINCT FROM o.last
        OR d_next_o_id - 1 <> n.last",
    "SELECT count(*) FROM
         (SELECT max(no_o_id) - min(no_o_id) + 1 AS span, count(*) AS rows
          FROM new_order GROUP BY no_w_id, no_d_id) n
     WHERE span <> rows",
    "SELECT count(*) FROM
         (SELECT o_w_id, o_d_id, sum(o_ol_cnt) AS lines FROM orders GROUP BY 1, 2) o
     FULL JOIN (SELECT ol_w_id, ol_d_id, count(*) AS rows FROM order_line GROUP BY 1, 2) l
         ON o_w_id = ol_w_id AND o_d_id = ol_d_id
     WHERE lines IS DISTINCT FROM rows",
];

/// Checks the four consistency conditions of TPC-C.
pub(super) fn check(client: &mut Client) -> Result<(), Error> {
    for (number, condition) in (1..).zip(CONDITIONS) {
        let places: i64 = client.query_one(condition, &[]).map_err(failed)?.get(0);
        if places > 0 {
            let what =
                format!("TPC-C's consistency condition {number} does not hold in {places} places");
            return Err(Error::Wrong(what));
        }
    }
    Ok(())
}

/// Numbers of committed orders and payments, counted in the tables.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Count {
    orders: i64,
    payments: i64,
}

pub(super) fn count(client: &mut Client) -> Result<Count, Error> {
    let mut one = |query: &str| client.query_one(query, &[]).map(|row| row.get(0)).map_err(failed);
    let orders = one("SELECT count(*) FROM orders")?;
    Ok(Count { orders, payments: one("SELECT count(*) FROM history")? })
}

/// Checks that each total has grown by what the clients have committed: no committed transaction is missing, and none
/// is counted twice.
pub(super) fn compare(before: Count, after: Count, done: &TerminalResult) -> Result<(), Error> {
    let all = [
        ("orders", after.orders - before.orders, done.orders),
        ("payments", after.payments - before.payments, done.payments),
    ];
    for (what, found, committed) in all {
        if found != committed as i64 {
            let what = format!("{committed} {what} were committed, and {found} were found");
            return Err(Error::Wrong(what));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_order_and_a_duplicate_payment_are_errors() {
        let count = |orders, payments| Count { orders, payments };
        let done = TerminalResult { orders: 5, payments: 7, ..TerminalResult::default() };
        compare(count(30, 30), count(35, 37), &done).unwrap();
        let error = compare(count(30, 30), count(34, 37), &done).unwrap_err().to_string();
        assert!(error.contains("5 orders were committed, and 4 were found"), "{error}");
        assert!(compare(count(30, 30), count(35, 38), &done).is_err());
    }
}
