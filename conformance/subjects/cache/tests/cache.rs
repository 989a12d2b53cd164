//! The cache on a driver that writes down what it is asked.

use hostview_cache::{CacheError, Held, Platform, Range, Table, ViewCache};

/// Maps what lies under `mapped_below`, and refuses the rest.
#[derive(Default)]
struct Driver {
    mapped_below: u64,
    asked: Vec<String>,
}

impl Platform for Driver {
    type Error = u32;

    fn register(&mut self, device: u32, base: u64, bytes: u64) -> Result<u64, u32> {
        self.asked.push(format!("register {device} {base} {bytes}"));
        if base < self.mapped_below { Ok(base + 0x1000) } else { Err(65534) }
    }

    fn unregister(&mut self, device: u32, base: u64) -> Result<(), u32> {
        self.asked.push(format!("unregister {device} {base}"));
        Ok(())
    }

    fn copy_in(&mut self, device: u32, to: u64, from: &[u8]) -> Result<(), u32> {
        self.asked.push(format!("copy_in {device} {to} {from:?}"));
        Ok(())
    }

    fn copy_out(&mut self, device: u32, from: u64, into: &mut [u8]) -> Result<(), u32> {
        self.asked.push(format!("copy_out {device} {from} {}", into.len()));
        Ok(())
    }

    fn store(&mut self, view: u64, from: &[u8]) -> Result<(), u32> {
        self.asked.push(format!("store {view} {from:?}"));
        Ok(())
    }

    fn load(&mut self, view: u64, into: &mut [u8]) -> Result<(), u32> {
        self.asked.push(format!("load {view} {}", into.len()));
        Ok(())
    }
}

fn cache() -> (ViewCache, Driver) {
    let mut cache = ViewCache::new();
    cache.track::<u32>(2, 100, 50).unwrap();
    cache.track::<u32>(3, 200, 20).unwrap();
    (cache, Driver { mapped_below: 150, asked: Vec::new() })
}

#[test]
fn an_access_goes_through_the_view_or_by_a_copy_of_the_allocations_own_device() {
    let (mut cache, mut driver) = cache();
    cache.read(&mut driver, 110, &mut [0; 4]).unwrap();
    cache.write(&mut driver, 111, &[7]).unwrap();
    cache.read(&mut driver, 205, &mut [0; 2]).unwrap();
    cache.write(&mut driver, 206, &[8]).unwrap();
    let asked = [
        "register 2 100 50",
        "load 4206 4",
        "store 4207 [7]",
        "register 3 200 20",
        "copy_out 3 205 2",
        "register 3 200 20",
        "copy_in 3 206 [8]",
    ];
    assert_eq!(driver.asked, asked);
    assert_eq!(cache.held(), Held { count: 1, bytes: 50 });
}

#[test]
fn finalize_drops_every_view_and_closes_the_door() {
    let (mut cache, mut driver) = cache();
    driver.mapped_below = 300;
    cache.acquire(&mut driver, 100, 1).unwrap();
    cache.acquire(&mut driver, 200, 1).unwrap();
    assert_eq!(cache.held(), Held { count: 2, bytes: 70 });
    cache.release(&mut driver, 100, |_| Ok(())).unwrap();
    assert_eq!(cache.held(), Held { count: 1, bytes: 20 });
    cache.finalize(&mut driver).unwrap();
    assert_eq!(cache.held(), Held::default());
    assert_eq!(driver.asked[2..], ["unregister 2 100", "unregister 3 200"]);
    assert!(matches!(cache.acquire(&mut driver, 200, 1), Err(CacheError::Finalized)));
}

#[test]
fn what_is_removed_from_the_table_is_gone_and_the_rest_comes_in_order() {
    let mut table = Table::default();
    for (base, name) in [(30, 'c'), (10, 'a'), (20, 'b')] {
        table.insert(Range { base, bytes: 5 }, name).unwrap();
    }
    assert_eq!(table.remove(20), Some('b'));
    assert_eq!(table.remove(20), None);
    assert_eq!(table.iter().map(|(range, name)| (range.base, *name)).collect::<Vec<_>>(), [(10, 'a'), (30, 'c')]);
    for (_, name) in table.iter_mut() {
        *name = 'z';
    }
    assert_eq!(table.find(10, 1).unwrap().1, &'z');
}
