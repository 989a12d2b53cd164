//! How strong is random? For each planted fault, how many sequences it takes to be caught, drawn as the suite draws them and
//! drawn uniformly: `cargo bench -p hostview --bench strength`.

#![allow(missing_docs)]

use hostview::check::ProfileChoice;
use hostview::mutants::{MutantOptions, Strength, measure_strength};
use hostview_sim::Profile;

const SEEDS: u64 = 7;
const CASES: u32 = 1024;

fn main() {
    let profile = Profile::shipped("a2a3").expect("a shipped profile");
    let runs: Vec<Vec<Strength>> = (1..=SEEDS)
        .map(|seed| {
            let profile = ProfileChoice::Given(Box::new(profile.clone()), "a2a3".to_owned());
            measure_strength(&MutantOptions { profile, cases: CASES, seed, without: Vec::new(), jobs: 2 })
        })
        .collect();
    println!(
        "sequences until caught, the median of {SEEDS} seeds, at most {CASES}; not caught counts as {}",
        CASES + 1
    );
    println!("{:<36}{:>7}{:>7}{:>9}{:>8}", "mutant", "suite", "worst", "uniform", "ratio");
    let (mut suite, mut uniform, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for at in 0..runs[0].len() {
        let of = |pick: fn(&Strength) -> Option<u32>| {
            let mut counts: Vec<u32> = runs.iter().map(|run| pick(&run[at]).unwrap_or(CASES + 1)).collect();
            counts.sort_unstable();
            (counts[counts.len() / 2], *counts.last().unwrap_or(&0))
        };
        let (ours, worst) = of(|strength| strength.suite);
        let (plain, _) = of(|strength| strength.uniform);
        let ratio = f64::from(plain) / f64::from(ours);
        println!("{:<36}{ours:>7}{worst:>7}{plain:>9}{ratio:>8.1}", runs[0][at].name);
        suite.push(ours);
        uniform.push(plain);
        ratios.push(ratio);
    }
    suite.sort_unstable();
    uniform.sort_unstable();
    ratios.sort_by(f64::total_cmp);
    let middle = suite.len() / 2;
    println!(
        "the median mutant: {} against {}, ratio {:.1}; the worst: {} against {}; the worst ratio {:.1}",
        suite[middle],
        uniform[middle],
        ratios[middle],
        suite[suite.len() - 1],
        uniform[uniform.len() - 1],
        ratios[0]
    );
}
