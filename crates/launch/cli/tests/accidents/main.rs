//! Tests of the final screen after frequent accidents, at 80x24.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod scenes;
mod stage;

use scenes::{SCENES, Scene};
use stage::play;

/// Asserts that the screen shows the cause, the first failed rank and a remedy.
fn check(scene: &Scene, workers: u32) {
    let screen = play(scene, workers);
    assert!(screen.rows.len() <= 24);
    let text = screen.text();
    for part in [scene.cause, scene.who, scene.remedy] {
        assert!(
            text.contains(part),
            "{} with {workers} workers has no {part:?}:\n{}",
            scene.name,
            screen.rows.join("\n")
        );
    }
    assert_ne!(screen.code, Some(0), "{}", scene.name);
}

#[test]
fn each_accident_shows_cause_rank_and_remedy_with_2_workers() {
    for scene in &SCENES {
        check(scene, 2);
    }
}

#[test]
fn each_accident_shows_cause_rank_and_remedy_with_24_workers() {
    for scene in &SCENES {
        check(scene, 24);
    }
}

#[test]
fn the_page_has_each_accident_under_both_launchers() {
    let page = include_str!("../../../../../docs/accidents.md");
    for scene in &SCENES {
        let (_, section) = page.split_once(&format!("\n## {}\n", scene.name)).unwrap();
        let section = section.split("\n## ").next().unwrap();
        assert!(section.contains("`torchrun`"), "{}", scene.name);
        // The terminal wraps lines, so the comparison ignores blanks.
        let joined = |text: &str| text.split_whitespace().collect::<String>();
        let section = joined(section);
        for part in [scene.cause, scene.who, scene.remedy] {
            assert!(section.contains(&joined(part)), "{}: {part}", scene.name);
        }
    }
}
