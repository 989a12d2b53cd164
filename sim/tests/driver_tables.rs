//! The driver's decision tables, row by row (`driver-source.md` §14): what must come is written from the tables.

#![allow(missing_docs)]

use hostview_sim::{
    AclError, DeviceAddr, DrvError, HostAddr, PageKind, PagePolicy, Profile, RegisterCall, RegisterFlags, SimHost,
};
use rstest::{fixture, rstest};

const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;
const MIB: u64 = 1 << 20;
const MALLOC: DeviceAddr = DeviceAddr::new(0x7f12_3456_7000);
const NEVER: DeviceAddr = DeviceAddr::new(0x17ff_0000_0000);

fn host(profile: &str) -> SimHost {
    SimHost::new(&Profile::shipped(profile).unwrap())
}

#[fixture]
fn a2a3() -> SimHost {
    host("a2a3")
}

fn ordinary(host: &mut SimHost, bytes: u64) -> DeviceAddr {
    host.alloc(0, PageKind::Ordinary, bytes).unwrap()
}

fn huge(host: &mut SimHost, bytes: u64) -> DeviceAddr {
    host.alloc(0, PageKind::Huge, bytes).unwrap()
}

fn register(host: &mut SimHost, address: DeviceAddr, bytes: u64) -> Result<HostAddr, DrvError> {
    host.register(RegisterCall::view(address, bytes))
}

fn with_flags(host: &mut SimHost, address: DeviceAddr, flags: u32, device: u32) -> Result<HostAddr, DrvError> {
    let flags = RegisterFlags(flags);
    host.register(RegisterCall { flags, device, ..RegisterCall::view(address, PAGE) })
}

fn at(address: DeviceAddr, offset: u64) -> DeviceAddr {
    address.wrapping_add(offset)
}

mod register_v2 {
    use super::*;

    #[rstest]
    fn r1_an_unknown_map_type_comes_before_everything(mut a2a3: SimHost) {
        assert_eq!(with_flags(&mut a2a3, MALLOC, 7, 66), Err(DrvError::NotSupport));
    }

    #[rstest]
    fn r2_a_wrong_device_counts_only_outside_the_shared_range(mut a2a3: SimHost) {
        assert_eq!(with_flags(&mut a2a3, MALLOC, 2, 66), Err(DrvError::InvalidDevice));
        let base = ordinary(&mut a2a3, PAGE);
        assert!(with_flags(&mut a2a3, base, 2, 66).is_ok());
    }

    #[rstest]
    fn r3_an_unknown_process_type_is_not_supported(mut a2a3: SimHost) {
        assert_eq!(with_flags(&mut a2a3, MALLOC, 2 | 6 << 16, 0), Err(DrvError::NotSupport));
    }

    #[rstest]
    fn r4_dst_must_be_given_before_the_address_is_looked_at(mut a2a3: SimHost) {
        let call = RegisterCall { has_dst: false, ..RegisterCall::view(NEVER, PAGE) };
        assert_eq!(a2a3.register(call), Err(DrvError::InvalidValue));
    }

    #[rstest]
    fn r5_what_no_kernel_block_holds_is_refused(mut a2a3: SimHost) {
        assert_eq!(register(&mut a2a3, NEVER, PAGE), Err(DrvError::ParaError));
        let base = huge(&mut a2a3, 100 * MIB);
        a2a3.free(base).unwrap();
        assert_eq!(register(&mut a2a3, base, PAGE), Err(DrvError::ParaError));
        assert!(a2a3.log().iter().any(|line| line.starts_with("Va isn't alloced.")));
    }

    #[rstest]
    #[case(MALLOC)]
    #[case(DeviceAddr::NULL)]
    fn r7_host_memory_and_null_go_with_other_map_types(mut a2a3: SimHost, #[case] address: DeviceAddr) {
        assert_eq!(register(&mut a2a3, address, PAGE), Err(DrvError::ParaError));
    }

    #[rstest]
    #[case::host_mem_map_dev(0)]
    #[case::host_svm_map_dev(1)]
    #[case::dev_mem_map_host(4)]
    fn device_memory_goes_with_no_other_map_type(mut a2a3: SimHost, #[case] map_type: u32) {
        let base = ordinary(&mut a2a3, PAGE);
        assert_eq!(with_flags(&mut a2a3, base, map_type, 0), Err(DrvError::ParaError));
    }

    #[rstest]
    #[case("a2a3")]
    #[case("a2a3-64k")]
    fn r9_size_0_comes_before_the_capability(#[case] profile: &str) {
        let mut host = host(profile);
        let base = ordinary(&mut host, PAGE);
        assert_eq!(register(&mut host, base, 0), Err(DrvError::ParaError));
    }

    #[rstest]
    fn r10_another_process_is_not_supported(mut a2a3: SimHost) {
        let base = ordinary(&mut a2a3, PAGE);
        assert_eq!(with_flags(&mut a2a3, base, 2 | 1 << 16, 0), Err(DrvError::NotSupport));
    }

    #[rstest]
    #[case("a2a3", true, true)]
    #[case("a2a3-64k", false, true)]
    #[case("a2a3-16k", false, true)]
    #[case("a2a3-vm", false, false)]
    fn r11_capabilities_decide_page_kinds_apart(#[case] profile: &str, #[case] small: bool, #[case] large: bool) {
        let mut host = host(profile);
        let (ordinary, huge) = (ordinary(&mut host, 1280), huge(&mut host, HUGE));
        for (base, bytes, capable, words) in [
            (ordinary, 1280, small, "Not support pcie bar remote map."),
            (huge, HUGE, large, "Not support pcie bar huge remote map."),
        ] {
            let expected = if capable { Ok(HostAddr::new(base.get())) } else { Err(DrvError::NotSupport) };
            assert_eq!(register(&mut host, base, bytes), expected);
            assert_eq!(host.log().iter().any(|line| line.starts_with(words)), !capable);
        }
    }

    #[rstest]
    #[case::unaligned(1, PAGE)]
    #[case::over_long(0, 2 << 30)]
    fn r11_comes_before_bounds_and_alignment(#[case] offset: u64, #[case] bytes: u64) {
        let mut host = host("a2a3-64k");
        let base = ordinary(&mut host, PAGE);
        assert_eq!(register(&mut host, at(base, offset), bytes), Err(DrvError::NotSupport));
    }

    #[rstest]
    #[case::one_page_too_many((1 << 30) + PAGE)]
    #[case::near_the_top(u64::MAX - 100)]
    fn r12_a_range_past_the_heap_is_refused(mut a2a3: SimHost, #[case] bytes: u64) {
        let base = ordinary(&mut a2a3, PAGE);
        assert_eq!(register(&mut a2a3, base, bytes), Err(DrvError::ParaError));
        assert!(a2a3.log().iter().any(|line| line.starts_with("Size is error.")));
    }

    #[rstest]
    #[case::a_byte_off(PageKind::Ordinary, 1)]
    #[case::half_a_page(PageKind::Ordinary, 2048)]
    #[case::an_ordinary_page_into_a_huge_one(PageKind::Huge, 4096)]
    fn r13_a_registration_begins_on_a_page_of_its_kind(mut a2a3: SimHost, #[case] kind: PageKind, #[case] offset: u64) {
        let base = a2a3.alloc(0, kind, 4 * MIB).unwrap();
        assert_eq!(register(&mut a2a3, at(base, offset), PAGE), Err(DrvError::ParaError));
    }

    #[rstest]
    fn r14_r15_an_overlap_changes_nothing(mut a2a3: SimHost) {
        let base = ordinary(&mut a2a3, 8 * PAGE);
        register(&mut a2a3, at(base, 2 * PAGE), 2 * PAGE).unwrap();
        let before: Vec<_> = a2a3.registrations().collect();
        for (offset, pages) in [(2, 2), (2, 1), (3, 1), (0, 3), (1, 4), (3, 3)] {
            assert_eq!(register(&mut a2a3, at(base, offset * PAGE), pages * PAGE), Err(DrvError::ParaError));
        }
        assert_eq!(a2a3.registrations().collect::<Vec<_>>(), before);
        register(&mut a2a3, base, 2 * PAGE).unwrap();
        register(&mut a2a3, at(base, 4 * PAGE), 4 * PAGE).unwrap();
    }

    #[rstest]
    fn r16_a_page_without_memory_behind_it_is_refused_and_nothing_mapped(mut a2a3: SimHost) {
        let base = huge(&mut a2a3, HUGE);
        assert_eq!(register(&mut a2a3, base, 2 * HUGE), Err(DrvError::ParaError));
        assert_eq!(a2a3.registrations().count(), 0);
        assert!(a2a3.host_read(HostAddr::new(base.get()), &mut [0]).is_err());
    }

    #[rstest]
    #[case::to_the_byte(1, 1)]
    #[case::a_whole_page(PAGE, 1)]
    #[case::one_byte_over(PAGE + 1, 2)]
    #[case::sixteen_pages(65_536, 16)]
    fn r17_success_is_identity_and_rounds_up_to_pages(mut a2a3: SimHost, #[case] bytes: u64, #[case] pages: u64) {
        let base = ordinary(&mut a2a3, 64 * PAGE);
        assert_eq!(register(&mut a2a3, base, bytes), Ok(HostAddr::new(base.get())));
        assert_eq!(a2a3.registrations().next().unwrap().bytes, pages * PAGE);
    }

    #[rstest]
    fn r17_an_interior_page_a_neighbour_and_a_cached_block_are_all_included(mut a2a3: SimHost) {
        let (a, b) = (ordinary(&mut a2a3, 2 * PAGE), ordinary(&mut a2a3, PAGE));
        assert_eq!(b, at(a, 2 * PAGE));
        register(&mut a2a3, at(a, PAGE), 2 * PAGE).unwrap();
        a2a3.unregister(at(a, PAGE), 0).unwrap();
        a2a3.free(a).unwrap();
        register(&mut a2a3, a, PAGE).unwrap();
    }

    #[rstest]
    fn on_the_shifted_profile_the_view_lies_outside_the_shared_range() {
        let mut host = host("shifted");
        let base = ordinary(&mut host, PAGE);
        let view = register(&mut host, base, PAGE).unwrap();
        assert_eq!(view, HostAddr::new(base.get() + 0x2000_0000_0000));
        assert!(!host.profile().in_svm_range(DeviceAddr::new(view.get())));
    }
}

mod unregister_v2 {
    use super::*;

    #[rstest]
    fn by_the_first_page_and_no_other(mut a2a3: SimHost) {
        let base = ordinary(&mut a2a3, 4 * PAGE);
        register(&mut a2a3, base, 4 * PAGE).unwrap();
        assert_eq!(a2a3.unregister(at(base, PAGE), 0), Err(DrvError::ParaError));
        assert_eq!(a2a3.unregister(at(base, 1), 0), Err(DrvError::ParaError));
        assert_eq!(a2a3.unregister(base, 0), Ok(()));
        assert_eq!(a2a3.unregister(base, 0), Err(DrvError::ParaError));
    }

    #[rstest]
    fn it_ends_at_the_next_registration(mut a2a3: SimHost) {
        let base = ordinary(&mut a2a3, 4 * PAGE);
        register(&mut a2a3, base, 2 * PAGE).unwrap();
        register(&mut a2a3, at(base, 2 * PAGE), 2 * PAGE).unwrap();
        a2a3.unregister(base, 0).unwrap();
        let left: Vec<_> = a2a3.registrations().map(|left| (left.base, left.bytes)).collect();
        assert_eq!(left, [(at(base, 2 * PAGE), 2 * PAGE)]);
    }

    #[rstest]
    fn it_ends_at_the_kernel_block_and_loses_the_tail(mut a2a3: SimHost) {
        let (a, b) = (huge(&mut a2a3, HUGE), huge(&mut a2a3, HUGE));
        register(&mut a2a3, a, 2 * HUGE).unwrap();
        a2a3.unregister(a, 0).unwrap();
        assert_eq!(register(&mut a2a3, b, HUGE), Err(DrvError::ParaError));
        assert_eq!(a2a3.unregister(b, 0), Err(DrvError::ParaError));
        // The tail is still accessible: nobody unmapped it.
        assert!(a2a3.host_read(HostAddr::new(b.get()), &mut [0]).is_ok());
        assert!(a2a3.host_read(HostAddr::new(a.get()), &mut [0]).is_err());
    }

    #[rstest]
    #[case(MALLOC, 0, DrvError::FileOps)]
    #[case(DeviceAddr::NULL, 0, DrvError::FileOps)]
    #[case(MALLOC, 66, DrvError::InvalidDevice)]
    #[case(NEVER, 0, DrvError::ParaError)]
    fn what_was_never_registered(
        mut a2a3: SimHost,
        #[case] address: DeviceAddr,
        #[case] device: u32,
        #[case] error: DrvError,
    ) {
        assert_eq!(a2a3.unregister(address, device), Err(error));
    }

    #[rstest]
    #[case(7)]
    #[case(2 | 6 << 16)]
    fn the_flag_word_of_ex_is_checked(mut a2a3: SimHost, #[case] flags: u32) {
        let base = ordinary(&mut a2a3, PAGE);
        register(&mut a2a3, base, PAGE).unwrap();
        assert_eq!(a2a3.unregister_ex(base, 0, RegisterFlags(flags)), Err(DrvError::NotSupport));
        assert_eq!(a2a3.unregister_ex(base, 0, RegisterFlags(1)), Ok(()));
    }

    #[rstest]
    fn with_records_on_it_is_by_exact_address_and_device(mut a2a3: SimHost) {
        let base = ordinary(&mut a2a3, 2 * PAGE);
        register(&mut a2a3, base, PAGE).unwrap();
        assert!(a2a3.support_feature(hostview_sim::FEATURE_REGISTER_RECORDS));
        // Made before the records were on: none is found.
        assert_eq!(a2a3.unregister(base, 0), Err(DrvError::NotExist));
        a2a3.unregister_ex(base, 0, RegisterFlags::VIEW).unwrap();
        register(&mut a2a3, base, PAGE).unwrap();
        assert_eq!(a2a3.unregister(base, 1), Err(DrvError::NotExist));
        assert_eq!(a2a3.unregister(at(base, PAGE), 0), Err(DrvError::NotExist));
        assert_eq!(a2a3.unregister(base, 0), Ok(()));
        assert_eq!(a2a3.unregister(base, 0), Err(DrvError::NotExist));
        assert_eq!(a2a3.host_device_pointer(HostAddr::new(base.get()), 0), Err(DrvError::NotExist));
    }
}

mod free_v2 {
    use super::*;

    #[rstest]
    fn before_any_allocation_there_is_no_handle(mut a2a3: SimHost) {
        assert_eq!(a2a3.free(DeviceAddr::NULL), Err(DrvError::InvalidHandle));
    }

    #[rstest]
    fn only_the_base_of_a_live_allocation_can_be_freed(mut a2a3: SimHost) {
        let base = ordinary(&mut a2a3, 2 * PAGE);
        for address in [DeviceAddr::NULL, NEVER, MALLOC, at(base, 1), at(base, PAGE)] {
            assert_eq!(a2a3.free(address), Err(DrvError::InvalidValue));
        }
        a2a3.free(base).unwrap();
        assert_eq!(a2a3.free(base), Err(DrvError::InvalidValue));
    }

    #[rstest]
    #[case::a_small_block(PageKind::Ordinary, PAGE, None)]
    #[case::at_the_ordinary_threshold(PageKind::Ordinary, 18 * MIB, None)]
    #[case::over_the_ordinary_threshold(PageKind::Ordinary, 18 * MIB + 1, Some(DrvError::Busy))]
    #[case::at_the_huge_threshold(PageKind::Huge, 36 * MIB, None)]
    #[case::over_the_huge_threshold(PageKind::Huge, 36 * MIB + 1, Some(DrvError::Busy))]
    #[case::at_512_mib(PageKind::Huge, 512 * MIB, Some(DrvError::Busy))]
    #[case::over_512_mib(PageKind::Huge, 512 * MIB + 1, Some(DrvError::IocrlFail))]
    #[case::over_512_mib_of_ordinary_pages(PageKind::Ordinary, 512 * MIB + 1, Some(DrvError::IocrlFail))]
    fn while_registered_the_size_decides(
        mut a2a3: SimHost,
        #[case] kind: PageKind,
        #[case] bytes: u64,
        #[case] refused: Option<DrvError>,
    ) {
        let base = a2a3.alloc(0, kind, bytes).unwrap();
        register(&mut a2a3, base, PAGE).unwrap();
        assert_eq!(a2a3.free(base).err(), refused);
        // Either way the page is still there for the host.
        assert!(a2a3.host_read(HostAddr::new(base.get()), &mut [0]).is_ok());
        a2a3.unregister(base, 0).unwrap();
        assert_eq!(a2a3.free(base).is_ok(), refused.is_some());
    }

    #[rstest]
    fn acl_shows_both_refusals_as_507899(mut a2a3: SimHost) {
        for bytes in [100 * MIB, 600 * MIB] {
            let base = huge(&mut a2a3, bytes);
            register(&mut a2a3, base, PAGE).unwrap();
            assert_eq!(a2a3.acl_free(base), Err(AclError::DrvInternalError));
        }
        assert_eq!(a2a3.acl_free(DeviceAddr::NULL), Err(AclError::InvalidParam));
        assert_eq!(a2a3.acl_free(NEVER), Err(AclError::ParamInvalid));
    }

    fn freed(host: &mut SimHost, blocks: usize, bytes: u64, count: usize) -> Vec<DeviceAddr> {
        let blocks: Vec<_> = (0..blocks).map(|_| huge(host, bytes)).collect();
        for block in &blocks[..count] {
            host.free(*block).unwrap();
        }
        blocks
    }

    #[rstest]
    #[case::just_under_twice(35, 74)]
    #[case::at_twice(36, 2 + 38)]
    fn the_cache_shrinks_at_twice_its_threshold_and_down_to_it(
        mut a2a3: SimHost,
        #[case] count: usize,
        #[case] mib: u64,
    ) {
        // Twice what is live is under 36 MiB, so the fixed threshold stands. A block goes as long as more than the threshold
        // is left without it: 38 MiB stay.
        freed(&mut a2a3, 37, HUGE, count);
        assert_eq!(a2a3.device_memory_used(0), mib * MIB);
    }

    #[rstest]
    fn of_equal_blocks_the_oldest_go_first(mut a2a3: SimHost) {
        let blocks = freed(&mut a2a3, 37, HUGE, 36);
        // 17 went: 72 MiB down to 38.
        for (index, block) in blocks[..36].iter().enumerate() {
            assert_eq!(register(&mut a2a3, *block, HUGE).is_ok(), index >= 17, "block {index}");
        }
    }

    #[rstest]
    #[case::well_over_the_fixed_threshold(47, 120)]
    #[case::at_twice_what_is_live_twice(48, 24 + 50)]
    fn the_threshold_follows_what_is_live(mut a2a3: SimHost, #[case] count: usize, #[case] mib: u64) {
        // 120 MiB at most. With 24 MiB live: half of both is 72, twice what is live 48, which is the threshold; 96 MiB are
        // cached, twice that.
        freed(&mut a2a3, 60, HUGE, count);
        assert_eq!(a2a3.device_memory_used(0), mib * MIB);
    }

    #[rstest]
    #[case(14, 720)]
    #[case::at_the_threshold_and_128_mib(15, 180 + 396)]
    fn a_large_threshold_shrinks_128_mib_over_it(mut a2a3: SimHost, #[case] count: usize, #[case] mib: u64) {
        // 720 MiB at most, in blocks of 36. With 180 live the threshold is 360; 540 are cached, over 488.
        freed(&mut a2a3, 20, 36 * MIB, count);
        assert_eq!(a2a3.device_memory_used(0), mib * MIB);
    }

    #[rstest]
    #[case(31, 120)]
    #[case(32, 56 + 34)]
    fn v3s_threshold_stands_still(#[case] count: usize, #[case] mib: u64) {
        let mut host = host("a5-v3");
        freed(&mut host, 60, HUGE, count);
        assert_eq!(host.device_memory_used(0), mib * MIB);
    }

    #[rstest]
    fn a_registered_block_ends_the_shrink(mut a2a3: SimHost) {
        let blocks: Vec<_> = (0..37).map(|_| huge(&mut a2a3, HUGE)).collect();
        register(&mut a2a3, blocks[0], HUGE).unwrap();
        for block in &blocks[..36] {
            a2a3.free(*block).unwrap();
        }
        assert_eq!(a2a3.device_memory_used(0), 74 * MIB);
    }

    #[rstest]
    fn a_heap_with_a_live_allocation_stays(mut a2a3: SimHost) {
        let (kept, gone) = (huge(&mut a2a3, HUGE), huge(&mut a2a3, HUGE));
        let _other_heap = huge(&mut a2a3, 600 * MIB);
        a2a3.free(gone).unwrap();
        register(&mut a2a3, kept, HUGE).unwrap();
        assert_eq!(huge(&mut a2a3, HUGE), gone);
    }

    #[rstest]
    fn the_last_free_of_a_heap_that_is_not_the_only_one_destroys_it(mut a2a3: SimHost) {
        let small = huge(&mut a2a3, HUGE);
        register(&mut a2a3, small, HUGE).unwrap();
        let _other_heap = huge(&mut a2a3, 600 * MIB);
        a2a3.free(small).unwrap();
        assert!(a2a3.host_read(HostAddr::new(small.get()), &mut [0]).is_err());
        assert_eq!(register(&mut a2a3, small, HUGE), Err(DrvError::ParaError));
    }
}

mod alloc_v2 {
    use super::*;

    #[rstest]
    #[case(0, 0, DrvError::InvalidValue)]
    #[case(66, PAGE, DrvError::InvalidDevice)]
    #[case(2, PAGE, DrvError::NoDevice)]
    #[case(0, 65 << 30, DrvError::OutOfMemory)]
    #[case(0, u64::MAX, DrvError::OutOfMemory)]
    fn what_cannot_be_allocated(mut a2a3: SimHost, #[case] device: u32, #[case] bytes: u64, #[case] error: DrvError) {
        for kind in [PageKind::Ordinary, PageKind::Huge] {
            assert_eq!(a2a3.alloc(device, kind, bytes), Err(error));
        }
    }

    #[rstest]
    fn the_last_byte_of_memory_can_be_had_and_no_more(mut a2a3: SimHost) {
        let base = huge(&mut a2a3, 64 << 30);
        assert_eq!(a2a3.allocation_at(at(base, (64 << 30) - 1)).unwrap().base, base);
        assert_eq!(a2a3.allocation_at(at(base, 64 << 30)), None);
        assert_eq!(a2a3.alloc(0, PageKind::Ordinary, 1), Err(DrvError::OutOfMemory));
        assert!(a2a3.alloc(1, PageKind::Ordinary, 1).is_ok(), "the other device has its own");
    }

    #[rstest]
    fn heaps_begin_where_the_profile_says_and_kinds_never_share_one(mut a2a3: SimHost) {
        assert_eq!(ordinary(&mut a2a3, 1), DeviceAddr::new(0x12c0_0000_0000));
        assert_eq!(huge(&mut a2a3, 1), DeviceAddr::new(0x12c0_4000_0000));
        assert_eq!(a2a3.alloc(1, PageKind::Ordinary, 1), Ok(DeviceAddr::new(0x12c0_8000_0000)));
    }

    #[rstest]
    #[case::the_rest_is_kept_from_20_percent_on(1_675_264, 1_675_264)]
    #[case::under_20_percent_it_stays_slack(1_675_265, 2 << 20)]
    fn a_kernel_block_is_split_where_enough_is_left(mut a2a3: SimHost, #[case] bytes: u64, #[case] next: u64) {
        let first = ordinary(&mut a2a3, bytes);
        assert_eq!(ordinary(&mut a2a3, 1), at(first, next));
    }

    #[rstest]
    fn a_freed_piece_joins_its_neighbours_in_the_block(mut a2a3: SimHost) {
        let pieces: Vec<_> = (0..4).map(|_| ordinary(&mut a2a3, PAGE)).collect();
        a2a3.free(pieces[0]).unwrap();
        a2a3.free(pieces[2]).unwrap();
        a2a3.free(pieces[1]).unwrap();
        assert_eq!(ordinary(&mut a2a3, 3 * PAGE), pieces[0]);
    }

    #[rstest]
    fn huge_first_falls_back_to_ordinary_pages_where_memory_is_short() {
        let overrides = "[device]\nmemory = 8388608".parse().unwrap();
        let profile = Profile::shipped("a2a3").unwrap().overridden(&overrides, "test").unwrap();
        let mut host = SimHost::new(&profile);
        // An ordinary block of 4 MiB in the cache is memory that huge pages cannot have.
        let cached = ordinary(&mut host, 4 * MIB);
        host.free(cached).unwrap();
        let _filling = huge(&mut host, 4 * MIB);
        assert_eq!(host.alloc(0, PageKind::Huge, 2 * MIB), Err(DrvError::OutOfMemory));
        assert_eq!(host.rt_malloc(0, 2 * MIB, PagePolicy::HugeFirst), Ok(cached));
        assert_eq!(host.rt_malloc(0, 2 * MIB, PagePolicy::HugeOnly), Err(DrvError::OutOfMemory));
    }

    #[rstest]
    #[case(1_048_544, PageKind::Ordinary)]
    #[case(1_048_545, PageKind::Huge)]
    fn aclrt_malloc_switches_by_the_padded_size(mut a2a3: SimHost, #[case] bytes: u64, #[case] kind: PageKind) {
        let base = a2a3.acl_malloc(0, bytes, PagePolicy::HugeFirst).unwrap();
        assert_eq!(a2a3.allocation_at(base).unwrap().kind, kind);
    }

    #[rstest]
    fn a_request_of_a_page_through_acl_holds_two(mut a2a3: SimHost) {
        let base = a2a3.acl_malloc(0, 4096, PagePolicy::HugeFirst).unwrap();
        assert_eq!(a2a3.allocation_at(base).unwrap().size, 2 * PAGE);
        register(&mut a2a3, base, 4096).unwrap();
        assert_eq!(a2a3.registrations().next().unwrap().bytes, PAGE);
    }
}

mod v3 {
    use super::*;

    #[fixture]
    fn a5() -> SimHost {
        host("a5-v3")
    }

    #[rstest]
    fn null_and_size_0_come_before_the_flags(mut a5: SimHost) {
        let base = ordinary(&mut a5, PAGE);
        assert_eq!(with_flags(&mut a5, DeviceAddr::NULL, 7, 0), Err(DrvError::ParaError));
        assert_eq!(register(&mut a5, base, 0), Err(DrvError::ParaError));
        assert_eq!(with_flags(&mut a5, base, 7, 0), Err(DrvError::NotSupport));
        let call = RegisterCall { has_dst: false, ..RegisterCall::view(base, PAGE) };
        assert_eq!(a5.register(call), Err(DrvError::InvalidValue));
    }

    #[rstest]
    #[case::read_only(2 | 1 << 28)]
    #[case::another_process(2 | 1 << 16)]
    #[case::host_mem_map_dev(0)]
    #[case::dev_mem_map_host(4)]
    fn other_flags_are_not_supported(mut a5: SimHost, #[case] flags: u32) {
        let base = ordinary(&mut a5, PAGE);
        assert_eq!(with_flags(&mut a5, base, flags, 0), Err(DrvError::NotSupport));
    }

    #[rstest]
    fn host_memory_is_an_invalid_device(mut a5: SimHost) {
        assert_eq!(register(&mut a5, MALLOC, PAGE), Err(DrvError::InvalidDevice));
    }

    #[rstest]
    fn a_freed_block_has_no_property_left(mut a5: SimHost) {
        let base = ordinary(&mut a5, PAGE);
        a5.free(base).unwrap();
        assert_eq!(register(&mut a5, base, PAGE), Err(DrvError::ParaError));
        assert_eq!(a5.unregister(base, 0), Err(DrvError::ParaError));
    }

    #[rstest]
    fn the_range_is_checked_against_the_size_that_was_asked_for(mut a5: SimHost) {
        let base = ordinary(&mut a5, PAGE + 1);
        assert_eq!(register(&mut a5, base, 2 * PAGE), Err(DrvError::ParaError));
        assert_eq!(register(&mut a5, at(base, 1), PAGE), Err(DrvError::ParaError));
        assert_eq!(register(&mut a5, base, PAGE + 1), Ok(HostAddr::new(base.get())));
    }

    #[rstest]
    fn an_overlap_has_a_number_of_its_own(mut a5: SimHost) {
        let base = ordinary(&mut a5, 4 * PAGE);
        register(&mut a5, at(base, PAGE), 2 * PAGE).unwrap();
        for (offset, pages) in [(1, 2), (0, 2), (2, 1), (0, 4)] {
            assert_eq!(register(&mut a5, at(base, offset * PAGE), pages * PAGE), Err(DrvError::RepeatedUserd));
        }
        assert_eq!(a5.unregister(at(base, 2 * PAGE), 0), Err(DrvError::ParaError));
        assert_eq!(a5.unregister(at(base, PAGE), 0), Ok(()));
    }

    #[rstest]
    #[case(PageKind::Ordinary, PAGE)]
    #[case(PageKind::Huge, 100 << 20)]
    #[case(PageKind::Huge, 600 << 20)]
    fn a_free_of_anything_registered_is_busy(mut a5: SimHost, #[case] kind: PageKind, #[case] bytes: u64) {
        let base = a5.alloc(0, kind, bytes).unwrap();
        register(&mut a5, base, PAGE).unwrap();
        assert_eq!(a5.free(base), Err(DrvError::Busy));
        a5.unregister(base, 0).unwrap();
        assert_eq!(a5.free(base), Ok(()));
    }

    #[rstest]
    #[case(MALLOC, DrvError::NotSupport)]
    #[case(NEVER, DrvError::ParaError)]
    fn unregister_of_what_is_not_registered(mut a5: SimHost, #[case] address: DeviceAddr, #[case] error: DrvError) {
        assert_eq!(a5.unregister(address, 0), Err(error));
    }

    #[rstest]
    fn on_a_64_kib_host_ordinary_memory_must_be_multiples_of_the_host_page() {
        let overrides = "[host]\npage_size = 65536".parse().unwrap();
        let profile = Profile::shipped("a5-v3").unwrap().overridden(&overrides, "test").unwrap();
        let mut host = SimHost::new(&profile);
        let base = ordinary(&mut host, 128 << 10);
        assert_eq!(register(&mut host, base, PAGE), Err(DrvError::ParaError));
        assert_eq!(register(&mut host, at(base, PAGE), 64 << 10), Err(DrvError::ParaError));
        assert!(register(&mut host, base, 64 << 10).is_ok());
    }

    #[rstest]
    fn as_the_runtime_sees_an_a5_there_is_no_host_map_path() {
        let mut host = host("a5");
        for kind in [PageKind::Ordinary, PageKind::Huge] {
            let base = host.alloc(0, kind, HUGE).unwrap();
            assert_eq!(register(&mut host, base, HUGE), Err(DrvError::NotSupport));
        }
    }
}

#[rstest]
#[case("a2a3", 0b01110)]
#[case("a2a3-64k", 0b01000)]
#[case("a2a3-vm", 0b00000)]
#[case("a5-v3", 0b11010)]
fn the_feature_mask_tells_the_capabilities(#[case] profile: &str, #[case] granted: u64) {
    let mut host = host(profile);
    // A virtual machine without write-combining still maps memory of a device process: bit 2 needs page sizes alone.
    let granted = if profile == "a2a3-vm" { 0b00100 } else { granted };
    assert_eq!(host.support_features(0, u64::MAX), granted);
    assert_eq!(host.support_features(0, 0b1000), granted & 0b1000);
    assert_eq!(host.support_features(64, u64::MAX), 0);
}
