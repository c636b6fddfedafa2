use super::*;

/// Fold with a clock.
struct Scene {
    fold: Fold,
    start: Instant,
}

impl Scene {
    fn new(streams: u64) -> Self {
        let mut fold = Fold::default();
        (0..streams).for_each(|stream| fold.add(stream));
        Self {
            fold,
            start: Instant::now(),
        }
    }

    fn at(&self, milliseconds: u64) -> Instant {
        self.start + Duration::from_millis(milliseconds)
    }

    fn say(&mut self, milliseconds: u64, stream: u64, lines: &str) {
        let now = self.at(milliseconds);
        for line in lines.split(' ') {
            self.fold.push(stream, line.as_bytes(), now);
        }
    }

    /// Returns the lines that leave at this time, as `[0, 1] text`.
    fn leaving(&mut self, milliseconds: u64) -> Vec<String> {
        let now = self.at(milliseconds);
        std::iter::from_fn(|| self.fold.pop(now))
            .map(shown)
            .collect()
    }
}

fn shown(line: Folded) -> String {
    let text = String::from_utf8_lossy(&line.text);
    format!("{:?} {text}", line.streams)
}

#[test]
fn what_all_say_leaves_at_once_as_one() {
    let mut scene = Scene::new(3);
    scene.say(0, 0, "a b");
    scene.say(10, 1, "a b");
    assert!(scene.leaving(10).is_empty(), "the third may say it too");
    scene.say(20, 2, "a");
    assert_eq!(scene.leaving(20), ["[0, 1, 2] a"]);
    assert_eq!(scene.leaving(100), ["[0, 1] b"], "its window is over");
    assert!(scene.fold.is_empty() && scene.fold.deadline().is_none());
}

#[test]
fn a_line_waits_for_one_window_only() {
    let mut scene = Scene::new(2);
    scene.say(0, 0, "a");
    assert_eq!(scene.fold.deadline(), Some(scene.at(100)));
    assert!(scene.leaving(99).is_empty());
    assert_eq!(scene.leaving(100), ["[0] a"]);
    scene.say(101, 1, "a");
    assert_eq!(scene.leaving(201), ["[1] a"], "too late");
}

#[test]
fn distinct_lines_keep_their_order_and_stay_together() {
    let mut scene = Scene::new(2);
    scene.say(0, 0, "a1 a2 a3");
    scene.say(0, 1, "b1 b2 b3");
    assert_eq!(
        scene.leaving(100),
        ["[0] a1", "[0] a2", "[0] a3", "[1] b1", "[1] b2", "[1] b3"]
    );
}

#[test]
fn one_who_says_more_is_aligned_with_the_others() {
    let mut scene = Scene::new(3);
    scene.say(0, 0, "trace file1 file2 error0");
    scene.say(5, 1, "warning trace file1 more file2 error1");
    scene.say(9, 2, "trace file1 file2 error2");
    assert_eq!(
        scene.leaving(110),
        [
            "[1] warning",
            "[0, 1, 2] trace",
            "[0, 1, 2] file1",
            "[1] more",
            "[0, 1, 2] file2",
            "[0] error0",
            "[1] error1",
            "[2] error2"
        ]
    );
}

#[test]
fn another_order_is_no_reason_to_wait() {
    let mut scene = Scene::new(2);
    scene.say(0, 0, "a b");
    scene.say(0, 1, "b a");
    let left = scene.leaving(100);
    assert_eq!(left.len(), 3, "{left:?}");
    let of = |stream: char| -> Vec<char> {
        left.iter()
            .filter(|line| line.contains(stream))
            .filter_map(|line| line.chars().last())
            .collect()
    };
    assert_eq!((of('0'), of('1')), (vec!['a', 'b'], vec!['b', 'a']));
}

#[test]
fn empty_lines_align_nothing_but_are_folded() {
    let mut scene = Scene::new(2);
    scene.fold.push(0, b"", scene.at(0));
    scene.say(50, 1, "x");
    scene.fold.push(1, b"", scene.at(50));
    assert_eq!(scene.leaving(100), ["[0] "], "x may still find company");
    scene.fold.push(0, b"x", scene.at(110));
    scene.fold.push(0, b"", scene.at(110));
    assert_eq!(scene.leaving(110), ["[0, 1] x", "[0, 1] "]);
}

#[test]
fn one_who_has_ended_is_not_waited_for() {
    let mut scene = Scene::new(3);
    scene.say(0, 0, "a b");
    scene.say(0, 1, "a b");
    scene.say(0, 2, "a");
    scene.fold.end(2);
    assert_eq!(scene.leaving(0), ["[0, 1, 2] a", "[0, 1] b"]);
    scene.say(1, 0, "c");
    scene.fold.end(0);
    assert!(scene.leaving(1).is_empty(), "1 may say it too");
    scene.fold.end(1);
    assert_eq!(scene.leaving(1), ["[0] c"]);
    assert!(scene.fold.queues.is_empty());
}

#[test]
fn what_stands_before_a_partial_line_leaves_first() {
    let mut scene = Scene::new(2);
    scene.say(0, 0, "a b");
    scene.say(0, 1, "x b y");
    let left: Vec<String> = std::iter::from_fn(|| scene.fold.release(0))
        .map(shown)
        .collect();
    assert_eq!(left, ["[0] a", "[1] x", "[0, 1] b"]);
    assert_eq!(scene.leaving(100), ["[1] y"]);
}

#[test]
fn a_flood_does_not_wait_beyond_the_bound() {
    let mut scene = Scene::new(2);
    let (line, now) = ("x".repeat(1000), scene.at(0));
    let mut left = 0;
    for number in 0..10_000 {
        scene
            .fold
            .push(0, format!("{number}{line}").as_bytes(), now);
        left += std::iter::from_fn(|| scene.fold.pop(now)).count();
        assert!(scene.fold.bytes <= MOST_BYTES);
    }
    assert!(left > 8000, "{left}");
    left += scene.leaving(100).len();
    assert_eq!((left, scene.fold.bytes), (10_000, 0));
}

#[test]
fn whatever_arrives_leaves_once_and_in_order() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..200 {
        let mut scene = Scene::new(4);
        let mut said = vec![String::new(); 4];
        let mut left = vec![String::new(); 4];
        for time in 0..100 {
            let stream = random.u64(0..4);
            let text = ["a", "b", "c", "-", ""][random.usize(0..5)];
            scene.fold.push(stream, text.as_bytes(), scene.at(time * 5));
            said[usize::try_from(stream).unwrap()] += &format!("{text} ");
            if time == 99 {
                (0..4).for_each(|stream| scene.fold.end(stream));
            }
            let now = scene.at(time * 5);
            while let Some(line) = scene.fold.pop(now) {
                let text = String::from_utf8_lossy(&line.text).into_owned();
                for stream in line.streams {
                    left[usize::try_from(stream).unwrap()] += &format!("{text} ");
                }
            }
            assert!(scene.fold.deadline().is_none_or(|due| due > now));
        }
        assert_eq!(said, left);
        assert!(scene.fold.is_empty() && scene.fold.bytes == 0);
    }
}

#[test]
fn text_that_is_not_compared_waits_for_what_is_before_it_only() {
    let mut scene = Scene::new(2);
    let now = scene.at(0);
    scene.fold.push_alone(0, b"flood", now);
    assert_eq!(scene.leaving(0), ["[0] flood"]);
    scene.say(0, 0, "a");
    scene.fold.push_alone(0, b"flood", now);
    scene.fold.push_alone(1, b"flood", now);
    assert_eq!(scene.leaving(0), ["[1] flood"]);
    scene.say(50, 1, "a");
    assert_eq!(scene.leaving(50), ["[0, 1] a", "[0] flood"]);
    assert!(scene.fold.is_empty());
}
