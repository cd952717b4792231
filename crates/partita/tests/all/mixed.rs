//! Clusters whose ranks have different devices.

use super::unfold::{check_within, step};
use partita::price::Price;
use partita_cost::Fill;

/// Devices that are much slower than those of the ready clusters, from a rank on.
const SLOW_BEHIND_2: &str = "cluster.devices=[{ first = 2, flops_per_s = 5e12, flops_per_s_by_type = {}, memory_bytes_per_s = 5e11 }]";
const SLOW_BEFORE_2: &str = "cluster.flops_per_s=5e12";

#[test]
fn a_step_that_is_folded_takes_what_it_takes_whole() {
    let check = |mesh, sizes: &[_], more: &[&str]| check_within(0.02, "gpt", mesh, sizes, more);
    // What the last slice computes ahead of its first input counts with its tasks, and here that slice is the slowest.
    check_within(0.03, "gpt", "pp=4", &[[8, 12]], &[SLOW_BEHIND_2]);
    check("pp=2,dp=2", &[[6, 4]], &[SLOW_BEHIND_2]);
    // Each slice has ranks of both kinds.
    check_within(
        0.02,
        "llama",
        "dp=2,pp=2",
        &[[6, 4]],
        &["cluster.devices=[{ first = 3, name = 'v100-32g' }]"],
    );
    check("dp=4", &[[6, 1], [3, 5]], &[SLOW_BEHIND_2]);
    let slow_first = [SLOW_BEFORE_2, "cluster.devices=[{ first = 2, name = 'v100-32g' }]"];
    check("pp=4", &[[8, 12]], &slow_first);
    check("pp=4", &[[8, 12]], &["cluster.name=a100-80g:1x2+v100-32g:1x2"]);
}

#[test]
fn the_slow_slice_decides_how_long_a_pipeline_takes() {
    let seconds = |more: &[&str]| step("gpt", "pp=2", [8, 8], more).price_folded(None).unwrap().step_s();
    let slow =
        ["cluster.flops_per_s=5e12", "cluster.flops_per_s_by_type={}", "cluster.memory_bytes_per_s=5e11"];
    let (fast_s, slow_s) = (seconds(&[]), seconds(&slow));
    let mixed_s = seconds(&[&SLOW_BEHIND_2.replace("first = 2", "first = 1")[..]]);
    assert!(fast_s < mixed_s && mixed_s < slow_s, "{fast_s} {mixed_s} {slow_s}");
    // Eight microbatches on the slow slice: the ramp of the fast one is what is saved.
    assert!(mixed_s > 0.8 * slow_s, "{mixed_s} {slow_s}");
}

#[test]
fn two_equal_kinds_are_as_one() {
    for mesh in ["pp=4", "dp=4", "pp=2,dp=2", "dp=2,pp=2"] {
        let price = |more: &[&str]| {
            let session = step("gpt", mesh, [8, 4], more);
            let folded = session.price_folded(None).unwrap();
            let whole = session.price_of(&session.build().unwrap()).unwrap();
            [(folded.step_s(), folded.fullest()), (whole.step_s(), whole.fullest())]
        };
        let [one, two] = [&[][..], &["cluster.devices=[{ first = 2, device = 'the same' }]"]].map(price);
        assert_eq!((one[1], one[0].1), (two[1], two[0].1), "{mesh}");
        // Of several kinds, each slice has an end of its own.
        let ratio = two[0].0 / one[0].0;
        assert!(
            (ratio - 1.0).abs() < if mesh.contains("pp") { 0.005 } else { f64::EPSILON },
            "{mesh}: {ratio}"
        );
    }
}

#[test]
fn each_rank_has_to_fit_its_own_device() {
    let on = |bytes: u64| {
        let others = format!("cluster.devices=[{{ first = 1, memory_bytes = {bytes} }}]");
        step("gpt", "pp=2", [4, 4], &[&others])
    };
    let session = on(1 << 40);
    let Price::Whole(whole) = session.price_of(&session.build().unwrap()).unwrap() else { unreachable!() };
    let second = whole.1.classes[1].memory.arena_bytes as u64;
    for (less, fits) in [(0, true), (1, false)] {
        let session = on(second - less);
        let price = session.price_of(&session.build().unwrap()).unwrap();
        assert_eq!((price.fullest(), fits), (Fill::new(second, second - less), price.fullest().fits()));
        let found = session.auto_plan(&session.model().unwrap(), session.mesh()).unwrap();
        assert!(found.best.fits());
        assert_eq!(found.best.limit, second - less);
    }
    let folded = on(1 << 20).price_folded(None).unwrap();
    let Price::Folded(forecast) = &folded else { unreachable!() };
    assert_eq!(folded.fullest(), Fill::new(forecast.stages[1].total().ceil() as u64, 1 << 20));
    assert_eq!(forecast.limits[1], 1 << 20);
    // No plan fits a device of 1000 bytes, however large the other one is.
    let session = on(1000);
    let error = session.auto_plan(&session.model().unwrap(), session.mesh()).unwrap_err();
    assert_eq!(error.code, "E520");
    assert!(error.expected.as_deref().unwrap().contains("1000 bytes"), "{error}");
}

/// The closed forms of messages between slices and the programs of small steps know the links that ranks share.
#[test]
fn a_folded_step_shares_links_as_the_whole_one_does() {
    let links = |rate: &str, count: &str| {
        format!(
            "cluster.links=[{{ ranks = 2, latency_s = 3e-6, bytes_per_s = 3e11 }}, \
             {{ latency_s = 1e-5, bytes_per_s = {rate}{count} }}]"
        )
    };
    // A folded step knows how long messages between slices take, but not when they wait for each other.
    for (mesh, of, rate) in
        [("dp=4", [6, 1], "1e9"), ("dp=2,tp=2", [6, 3], "1e9"), ("pp=2,dp=2", [6, 4], "1e10")]
    {
        let (one, own) = (links(rate, ", links = 1"), links(rate, ""));
        check_within(0.03, "gpt", mesh, &[of], &[&one]);
        let seconds = |links: &str| step("gpt", mesh, of, &[links]).price_folded(None).unwrap().step_s();
        assert!(seconds(&one) > seconds(&own), "{mesh}");
    }
}
