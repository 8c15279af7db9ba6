use super::*;
use crate::topology::{Cpu, FULL_CAPACITY, Node, Snapshot, Workers};

/// Two nodes with a CPU each, whatever this machine is.
fn two_nodes() -> Plan {
    let cpu = |id| Cpu {
        id,
        core: id,
        package: id,
        l3: id,
        node: id,
        capacity: FULL_CAPACITY,
        online: true,
    };
    let node = |id| Node { id, cpus: vec![id], distance: Vec::new() };
    let machine = Snapshot {
        cpus: (0..2).map(cpu).collect(),
        known: true,
        mask: vec![0, 1],
        quota: None,
        nodes: (0..2).map(node).collect(),
        notes: Vec::new(),
    };
    Plan::new(&machine, Workers::per_core())
}

#[test]
fn things_come_in_order_wherever_they_are_made() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let make = || count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let made = on_node_of(&two_nodes(), 7, |n| n % 2, make);
    // Those of the first node were made first.
    assert_eq!(made, [0, 4, 1, 5, 2, 6, 3]);
    let one = Plan::new(&Snapshot::one_node(2), Workers::per_core());
    assert_eq!(on_node_of(&one, 3, |n| n % 2, || 7), [7, 7, 7]);
}

#[test]
fn memory_that_is_anywhere_goes_back_at_once() {
    let home = Home::anywhere();
    let layout = Layout::from_size_align(1_000, 64).unwrap();
    // SAFETY: not empty.
    let memory = unsafe { home.alloc(layout) };
    assert_eq!(memory.addr().get() % 64, 0);
    // SAFETY: just allocated, with this layout.
    unsafe { home.free(memory, layout) };
}

#[test]
fn a_plan_on_one_node_binds_nothing() {
    let plan = Plan::new(&Snapshot::one_node(2), Workers::per_core());
    let (homes, note) = Home::of_nodes(&plan);
    assert!(homes.len() == 1 && homes[0].0.is_none() && note.is_none());
}

#[cfg(all(target_os = "linux", not(miri), not(loom)))]
mod on_linux {
    use super::*;

    #[test]
    fn a_node_that_is_not_there_is_a_note_and_memory_from_anywhere() {
        let mut plan = two_nodes();
        plan.node_ids = vec![0, 900];
        let (homes, note) = Home::of_nodes(&plan);
        assert!(homes.len() == 2 && homes.iter().all(|home| home.0.is_none()));
        assert!(note.expect("no machine has a node 900").contains("first touched"));
        assert!(can_bind_memory(900).is_err() && can_bind_memory(usize::MAX).is_err());
    }

    #[test]
    fn pieces_are_aligned_apart_and_hold_what_is_written() {
        let Ok(memory) = NodeMemory::new(&[0]) else {
            println!("this system binds no memory");
            return;
        };
        let memory = Arc::new(memory);
        let home = Home(Some((memory.clone(), 0)));
        let mut pieces = Vec::new();
        for n in 0..600usize {
            // Small ones, some that need a place of their own, and one with an alignment above a page.
            let size = [24, 3_000, 40_000, 700_000][n % 4] / if n % 40 == 3 { 1 } else { 7 };
            let align = [8, 64, 4_096, 1 << 14][n % 4];
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: not empty.
            let piece = unsafe { home.alloc(layout) };
            assert_eq!(piece.addr().get() % align, 0, "{layout:?}");
            // SAFETY: ours, of this size.
            unsafe { piece.write_bytes(n as u8, size) };
            pieces.push((piece, layout, n as u8));
        }
        for &(piece, layout, byte) in &pieces {
            // SAFETY: written above, and nobody else's.
            let bytes = unsafe { std::slice::from_raw_parts(piece.as_ptr(), layout.size()) };
            assert!(bytes.iter().all(|b| *b == byte), "{layout:?} was given out twice");
            // SAFETY: as given out; bound memory is only kept for the end.
            unsafe { home.free(piece, layout) };
        }
        assert!(memory.0[0].lock().unwrap().extents.len() > 3);
    }

    /// The node on which a page lies.
    fn node_of(page: *const u8) -> i32 {
        let mut status = -1;
        let pages = [page.cast::<libc::c_void>()];
        let none = std::ptr::null::<i32>();
        // SAFETY: one address to ask about and one answer; nothing is moved without a list of nodes.
        let answer = unsafe {
            libc::syscall(libc::SYS_move_pages, 0, 1, pages.as_ptr(), none, &raw mut status, 0)
        };
        assert_eq!(answer, 0, "{}", io::Error::last_os_error());
        status
    }

    /// Says little on a machine of one node; perf/numa-emulator runs it on two and on four.
    #[test]
    fn memory_lies_on_its_node() {
        let plan = Plan::new(&Snapshot::read(), Workers::per_core());
        println!("{} nodes, pinned: {}", plan.nodes, plan.pinned);
        if plan.nodes < 2 {
            return;
        }
        let (homes, note) = Home::of_nodes(&plan);
        assert_eq!(note, None);
        // Bound memory, touched from here.
        for (home, &node) in homes.iter().zip(&plan.node_ids) {
            for _ in 0..300 {
                let layout = Layout::from_size_align(16 << 10, 64).unwrap();
                // SAFETY: not empty.
                let piece = unsafe { home.alloc(layout) };
                // SAFETY: ours.
                unsafe { piece.write_bytes(1, layout.size()) };
                assert_eq!(node_of(piece.as_ptr()), node as i32);
            }
        }
        // First touch, by threads on the node.
        let workers = plan.workers.len();
        let made = on_node_of(&plan, 8 * workers, |n| n % workers, || vec![1u8; 256 << 10]);
        let mut astray = 0;
        for (n, thing) in made.iter().enumerate() {
            let node = plan.node_ids[plan.workers[n % workers].node];
            let pages = thing.chunks(PAGE).skip(1);
            astray += pages.filter(|page| node_of(page.as_ptr()) != node as i32).count();
        }
        let all = made.len() * 63;
        assert!(astray * 20 < all, "{astray} of {all} pages are on another node");
    }
}
