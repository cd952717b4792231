//! The page of `report` in a browser: headless Chromium draws it, where it is installed.

use crate::place;
use crate::report::SMALL;
use partita_testkit::Place;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Headless Chromium by one of its names; where it is not installed, the test says that it is skipped.
fn chromium() -> Option<&'static str> {
    let found = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
    let browser = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(found);
    if browser.is_none() {
        eprintln!("skipped: no Chromium here");
    }
    browser
}

/// The page as the browser has it after its script ran, and what the script said on the console.
fn opened(browser: &str, page: &Path, profile: &Path, flags: &[&str]) -> (String, Vec<String>) {
    let done = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"])
        .args(["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"])
        .args([
            "--disable-component-update",
            "--window-size=1700,3000",
            "--virtual-time-budget=6000",
            "--dump-dom",
        ])
        .args(flags)
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let console = said.lines().filter(|line| line.contains("CONSOLE")).map(str::to_string).collect();
    (String::from_utf8_lossy(&done.stdout).into_owned(), console)
}

#[test]
fn a_browser_draws_every_section_without_an_error() {
    let Some(browser) = chromium() else { return };
    let place = place();
    std::fs::write(place.path("log"), "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":2}\n").unwrap();
    let mut arguments = vec!["report", "gpt", "--mesh", "pp=2", "--microbatches", "2", "--out", "r.html"];
    arguments.extend(["--measured", "--cycle", "wait=0,active=1", "--losses", "log"]);
    arguments.extend(SMALL);
    let outcome = place.run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let (dom, console) = opened(browser, &place.path("r.html"), &place.path("profile"), &[]);
    assert!(console.is_empty(), "{console:#?}");
    let drawn = dom.matches("<section id=").count();
    let mut json = arguments.clone();
    json[7] = "r.json";
    assert_eq!(place.run(&json).code, Some(0));
    let report: Value = serde_json::from_slice(&std::fs::read(place.path("r.json")).unwrap()).unwrap();
    let sections = report["sections"].as_array().unwrap();
    assert_eq!(drawn, sections.len());
    let of = |kind: &str| sections.iter().filter(|section| section["body"]["kind"] == kind).count();
    assert_eq!(dom.matches("<canvas").count(), of("timeline"));
    assert_eq!(dom.matches("<svg").count(), of("lines") + of("roofline"));
    // The last section is complete: the script came to its end.
    assert!(dom.contains("[plan]"), "the plan is on the page");
    // A page whose script fails is found out.
    std::fs::write(place.path("bad.html"), "<script>console.error('no ' + none.such)</script>").unwrap();
    let (_, console) = opened(browser, &place.path("bad.html"), &place.path("profile"), &[]);
    assert_eq!(console.len(), 1, "{console:?}");
}

/// Runs in a page that is checked.
const CHECK: &str = include_str!("page_check.js");

/// The widths in pixels that a page is drawn in: a phone, a tablet and a desk.
const WIDTHS: [u32; 3] = [400, 900, 1600];

/// What the checks say of pages, of each in all widths, in one of the two colour schemes. Pages are drawn in frames, since a
/// window has a least width.
fn checked(browser: &str, place: &Place, pages: &[&str], is_dark: bool) -> Vec<Value> {
    let frame =
        |(name, width): (&str, u32)| format!("<iframe src='{name}' width={width} height=3000></iframe>\n");
    let mut frames = String::new();
    for name in pages {
        let page = std::fs::read_to_string(place.path(name)).unwrap();
        let with_check = page.replacen("<head>", &format!("<head><script>{CHECK}</script>"), 1);
        assert!(with_check.len() > page.len(), "{name} has a head");
        let copy = format!("checked-{name}");
        std::fs::write(place.path(&copy), with_check).unwrap();
        frames.extend(WIDTHS.map(|width| frame((&copy, width))));
    }
    // The listener comes first: a frame may be drawn before the page around it is read to its end.
    let around = format!(
        "<!doctype html><meta name='color-scheme' content='light dark'><style>iframe {{ border: 0 }}</style>
        <pre id=said></pre><script>
        const said = new Map();
        onmessage = event => {{
          said.set(event.source, event.data);
          const all = [...document.querySelectorAll('iframe')].map(frame => said.get(frame.contentWindow) || null);
          document.getElementById('said').textContent = JSON.stringify(all).replaceAll('<', '(').replaceAll('&', '+');
        }};
        </script>{frames}"
    );
    std::fs::write(place.path("around.html"), around).unwrap();
    let flags: &[&str] = if is_dark { &["--force-dark-mode"] } else { &[] };
    let (dom, console) = opened(browser, &place.path("around.html"), &place.path("profile"), flags);
    assert!(console.is_empty(), "{console:#?}");
    let begin = dom.find("<pre id=\"said\">").unwrap() + "<pre id=\"said\">".len();
    let said = &dom[begin..begin + dom[begin..].find("</pre>").unwrap()];
    serde_json::from_str(&said.replace("&gt;", ">")).unwrap_or_else(|error| panic!("{error}: `{said}`"))
}

/// Reports that differ in what they draw: a whole step, a folded one, a pipeline of many ranks, and a run with its log.
fn reports(place: &Place) -> [&'static str; 4] {
    let log: String = (0..400)
        .map(|step| format!("{{\"step\":{step},\"loss\":{}}}\n", 6.0 / (1.0 + step as f64)))
        .collect();
    std::fs::write(place.path("log"), log).unwrap();
    let large = "llama3-405b --mesh pp=16,dp=128,tp=8 --batch 2048 --microbatches 16 --dtype bf16 --sequence-parallel \
                 --vocab-parallel --set plan.layers.*=checkpoint --cluster h100-80g:2048x8";
    let pages = [
        ("tiny.html", "gpt --mesh pp=2,tp=2 --microbatches 4"),
        (
            "folded.html",
            "llama3-8b --cluster h100-80g:1x8 --mesh fsdp=8 --dtype bf16 --batch 64 --microbatches 8",
        ),
        ("large.html", large),
        (
            "measured.html",
            "gpt --mesh dp=2 --losses log --measured --cycle wait=0,active=1 --set model.layers=4",
        ),
    ];
    pages.map(|(name, arguments)| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let outcome = place.run(&[&["report"], &arguments[..], &["--out", name]].concat());
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        name
    })
}

/// No label covers another, no page scrolls sideways, and axes reach over what they measure, in all widths, light and dark.
#[test]
fn labels_are_apart_in_every_width_and_in_both_colour_schemes() {
    let Some(browser) = chromium() else { return };
    let place = place();
    let pages = reports(&place);
    for is_dark in [false, true] {
        let said = checked(browser, &place, &pages, is_dark);
        assert_eq!(said.len(), pages.len() * WIDTHS.len());
        for (number, said) in said.iter().enumerate() {
            let (page, width) = (pages[number / WIDTHS.len()], WIDTHS[number % WIDTHS.len()]);
            assert_eq!((&said["width"], &said["isDark"]), (&width.into(), &is_dark.into()), "{page}: {said}");
            assert!(said["labels"].as_u64().unwrap() > 50, "{page} is drawn: {said}");
            assert_eq!(said["problems"], serde_json::json!([]), "{page} at {width} pixels");
        }
    }
}

#[test]
fn the_check_of_labels_finds_what_is_wrong() {
    let Some(browser) = chromium() else { return };
    let place = place();
    let bad = "<html><head></head><body style='margin:0'><div style='width:2000px'>wide</div>
        <svg width=300 height=100><path class='tick y' d='M0 50H300'/><path class=shape d='M0 20H300'/>
        <text class='tick y' x=10 y=30>0</text><text class='tick y' x=10 y=80>1.57</text>
        <text x=100 y=60>one label</text><text x=120 y=62>another label</text></svg>
        <canvas width=300 height=40></canvas><script>
        const g = document.querySelector('canvas').getContext('2d');
        g.clearRect(0, 0, 300, 40); g.fillText('a tick', 10, 20); g.fillText('its neighbour', 20, 20);
        g.save(); g.rect(0, 0, 9, 9); g.clip(); g.fillText('cut off', 20, 20); g.restore();
        </script></body></html>";
    std::fs::write(place.path("bad.html"), bad).unwrap();
    let said = checked(browser, &place, &["bad.html"], false);
    let expected = serde_json::json!([
        "\"one label\" and \"another label\" overlap",
        "an axis ends below its peak",
        "ticks are 1.57 apart",
        "the page is 2000 wide in a window of 400",
        "\"a tick\" and \"its neighbour\" overlap",
    ]);
    assert_eq!(said[0]["problems"], expected);
}
