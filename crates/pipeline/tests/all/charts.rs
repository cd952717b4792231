//! Charts and figures of timetables: those of `docs/TIMETABLES.md` are true, and pictures are whole.

use partita_pipeline::{Task, TaskKind, Timetable, timetables};
use std::path::Path;

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/TIMETABLES.md");
    std::fs::read_to_string(path).expect("docs/TIMETABLES.md")
}

#[test]
fn the_page_has_a_true_chart_of_every_timetable() {
    let page = page();
    for named in timetables::ALL {
        let (slices, microbatches) = if named.chunks == 1 { (4, 8) } else { (2, 4) };
        let chart = (named.make)(slices, microbatches).chart().unwrap();
        let heading = format!("\n## {}\n", named.name);
        let (_, section) = page.split_once(&heading).unwrap_or_else(|| panic!("no section {}", named.name));
        let section = section.split("\n## ").next().unwrap();
        for part in ["Formula: ", "Source: "] {
            assert!(section.contains(part), "{} has no {part}", named.name);
        }
        let expected = format!("{slices} slices, {microbatches} microbatches:\n\n```text\n{chart}```\n");
        assert!(section.contains(&expected), "the chart of {} is now:\n{expected}", named.name);
    }
}

#[test]
fn the_figures_and_the_csv_of_the_page_are_true() {
    let page = page();
    for named in timetables::ALL {
        let timetable = (named.make)(4, 8);
        let times = timetable.times(|task| task.kind.slots()).unwrap();
        let row = format!(
            "\n| {} | {} | {} | {} | {} | {} |\n",
            named.name,
            named.chunks,
            times.makespan(),
            times.bubble(),
            (0..4).map(|slice| times.idle(slice)).max().unwrap(),
            (0..4).map(|slice| timetable.peak(slice)).max().unwrap()
        );
        assert!(page.contains(&row), "the row of {} is now:{row}", named.name);
    }
    let csv = format!("```text\n{}```\n", timetables::zbv(2, 4).to_csv());
    assert!(page.contains(&csv), "the CSV is now:\n{csv}");
}

#[test]
fn charts_tell_kinds_microbatches_and_stages_apart() {
    assert_eq!(
        timetables::one_f_one_b(2, 11).chart().unwrap(),
        "0 | F0  F1  .   .   B0----- F2  B1----- F3  B2----- F4  B3----- F5  B4----- F6  B5----- F7  B6----- F8  \
         B7----- F9  B8----- F10 B9----- .   B10----\n\
         1 | .   F0  B0----- F1  B1----- F2  B2----- F3  B3----- F4  B4----- F5  B5----- F6  B6----- F7  B7----- F8  \
         B8----- F9  B9----- F10 B10----\n"
    );
    // More than two stages on a slice have their numbers.
    assert_eq!(
        timetables::interleaved_1f1b(1, 3, 1).chart().unwrap(),
        "0 | 0F0 1F0 2F0 2B0---- 1B0---- 0B0----\n"
    );
    assert_eq!(Timetable::new(0, 0, Vec::new()).chart().unwrap(), "");
    let mut illegal = timetables::gpipe(1, 1);
    illegal.slices[0].reverse();
    assert_eq!(illegal.chart().unwrap_err().code, "E461");
}

/// The number of rectangles of an SVG, and its labels.
fn drawn(svg: &str) -> (usize, Vec<&str>) {
    let paths: usize =
        svg.lines().filter(|line| line.starts_with("<path")).map(|line| line.matches('z').count()).sum();
    let texts = svg.lines().filter_map(|line| line.strip_prefix("<text x="));
    (paths, texts.filter_map(|line| line.split('>').nth(1)?.split('<').next()).collect())
}

#[test]
fn pictures_show_every_task_and_are_small_and_still() {
    for named in timetables::ALL {
        let timetable = (named.make)(4, 8);
        let times = timetable.times(|task| task.kind.slots()).unwrap();
        let svg = timetable.svg(&times);
        let (boxes, labels) = drawn(&svg);
        let tasks: Vec<Task> = timetable.slices.iter().flatten().copied().collect();
        assert_eq!(boxes, tasks.len(), "{}", named.name);
        assert_eq!(labels.len(), tasks.len(), "{}", named.name);
        // Boxes are as wide as their slots, overlapped ones beside each other.
        let widths = svg.split('h').filter_map(|rest| rest.split_once("v18")?.0.parse::<usize>().ok());
        assert_eq!(widths.sum::<usize>(), 20 * times.work.iter().sum::<usize>(), "{}", named.name);
        for microbatch in 0..8 {
            let expected = tasks.iter().filter(|task| task.microbatch == microbatch).count();
            let found = labels.iter().filter(|label| **label == microbatch.to_string()).count();
            assert_eq!(found, expected, "{}: microbatch {microbatch}", named.name);
        }
        // A colour for each kind and each stage of a slice.
        let mut kinds: Vec<(TaskKind, bool)> = tasks.iter().map(|task| (task.kind, task.stage < 4)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let mut colours: Vec<&str> =
            svg.split("fill=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        assert_eq!(colours.len(), kinds.len(), "{}", named.name);
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), kinds.len(), "{} has two kinds of one colour", named.name);
        assert!(svg.len() < 100 * tasks.len() + 1000, "{} bytes for {} tasks", svg.len(), tasks.len());
        assert!(!svg.contains("script") && svg.contains("prefers-color-scheme:dark"));
        for tag in ["svg", "style", "title", "text"] {
            let opened = svg.matches(&format!("<{tag}")).count();
            assert_eq!(opened, svg.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }
}

#[test]
fn pictures_take_measured_times() {
    let timetable = timetables::one_f_one_b(3, 5);
    for unit in [0, 1, 1_000_000_007, usize::MAX / 4] {
        let times = timetable.times(|task| unit * (1 + task.stage % 2)).unwrap();
        let svg = timetable.svg(&times);
        assert_eq!(drawn(&svg).0, 30);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{unit}");
    }
}
