//! Images made up on the spot: waves under noise.

use super::{Fed, Feed, RegressionFeed};
use indexmap::IndexMap;
use partita_base::{DType, Result};
use partita_ir::{Literal, TensorType};
use partita_nn::random::Draws;
use std::collections::BTreeMap;
use std::f64::consts::TAU;

/// What an image is to be turned into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageGoal {
    /// The number of its wave, among so many.
    Class(usize),
    /// The wave without noise, with so many channels.
    Clean(usize),
}

/// Feeds models of images: `inputs` `[batch, height, width, channels]`, a plane wave for each image, whose direction and
/// length are those of its class, with normal noise; and as `labels` i32 `[batch]` the class, or as `targets` `[batch,
/// height, width, outputs]` the wave alone.
pub struct ImageFeed {
    image: [usize; 3],
    goal: ImageGoal,
    batch: usize,
    dtype: DType,
    seed: u64,
    /// Position, resumption and the end of validation are those of any data without an end.
    endless: RegressionFeed,
}

/// Waves for images without classes.
const WAVES: usize = 64;

impl ImageFeed {
    /// Images of this height, width and number of channels.
    pub fn new(image: [usize; 3], goal: ImageGoal, batch: usize, dtype: DType, seed: u64) -> ImageFeed {
        ImageFeed {
            image,
            goal,
            batch,
            dtype,
            seed,
            endless: RegressionFeed::new(&[1], false, batch, dtype, seed),
        }
    }

    /// The wave of a class at a place: whole numbers of periods along both directions, a phase for each channel.
    fn wave(&self, class: usize, [y, x, channel]: [usize; 3]) -> f64 {
        let side = (class as f64).sqrt() as usize;
        let (down, across) = (1 + class - side * side, 1 + side);
        let place =
            down as f64 * y as f64 / self.image[0] as f64 + across as f64 * x as f64 / self.image[1] as f64;
        (TAU * (place + channel as f64 / 4.0)).cos()
    }

    fn rows(&self, stream: &str, step: u64) -> Fed {
        let (draws, noise) =
            (Draws::new(self.seed, &format!("{stream}.class")), Draws::new(self.seed, stream));
        let [height, width, channels] = self.image;
        let waves = if let ImageGoal::Class(classes) = self.goal { classes } else { WAVES };
        let first = step * self.batch as u64;
        let classes: Vec<usize> =
            (first..first + self.batch as u64).map(|row| draws.below(row, waves)).collect();
        let image = |channels: usize| {
            let wave = move |&class: &usize| {
                let places = (0..height).flat_map(move |y| (0..width).map(move |x| (y, x)));
                places.flat_map(move |(y, x)| {
                    (0..channels).map(move |channel| self.wave(class, [y, x, channel]))
                })
            };
            classes.iter().flat_map(wave)
        };
        let ty = |channels: usize| TensorType::new(self.dtype, [self.batch, height, width, channels]);
        let start = first * (height * width * channels) as u64;
        let noisy = image(channels).zip(start..).map(|(wave, at)| wave + noise.normal(at));
        let inputs = Literal::from_f64(&ty(channels), noisy.collect::<Vec<f64>>().into_iter());
        let goal = match self.goal {
            ImageGoal::Class(_) => {
                let labels: Vec<i32> = classes.iter().map(|&class| class as i32).collect();
                ("labels", Literal::new([self.batch], labels))
            }
            ImageGoal::Clean(outputs) => {
                ("targets", Literal::from_f64(&ty(outputs), image(outputs).collect::<Vec<f64>>().into_iter()))
            }
        };
        IndexMap::from([("inputs".to_string(), inputs), (goal.0.to_string(), goal.1)])
    }
}

impl Feed for ImageFeed {
    fn batch(&self, step: u64) -> Result<Fed> {
        Ok(self.rows("inputs", step))
    }

    fn validation(&self, index: u64) -> Result<Fed> {
        Ok(self.rows("inputs.validation", index))
    }

    fn validation_batches(&self) -> u64 {
        self.endless.validation_batches()
    }

    fn tokens_per_batch(&self) -> usize {
        self.batch
    }

    fn describe(&self) -> String {
        let [height, width, channels] = self.image;
        match self.goal {
            ImageGoal::Class(classes) => {
                format!("noisy waves in images {height} x {width} x {channels}, {classes} classes")
            }
            ImageGoal::Clean(_) => {
                format!("noisy waves in images {height} x {width} x {channels}, and without noise")
            }
        }
    }

    fn position(&self, steps: u64) -> BTreeMap<String, String> {
        self.endless.position(steps)
    }

    fn resume(&self, position: &BTreeMap<String, String>) -> Result<u64> {
        self.endless.resume(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_its_own_images_and_classes_tell_their_waves_apart() {
        let feed = ImageFeed::new([8, 8, 2], ImageGoal::Class(5), 16, DType::F64, 3);
        let (one, again, other) = (feed.batch(1).unwrap(), feed.batch(1).unwrap(), feed.batch(2).unwrap());
        assert_eq!(one["inputs"].to_f64(), again["inputs"].to_f64());
        assert_ne!(one["inputs"].to_f64(), other["inputs"].to_f64());
        assert_ne!(one["inputs"].to_f64(), feed.validation(1).unwrap()["inputs"].to_f64());
        // The wave of the class is the one that the image resembles most, for nearly all images.
        let pixels = 8 * 8 * 2;
        let likeness = |image: &[f64], class: usize| -> f64 {
            let places = (0..8).flat_map(|y| (0..8).flat_map(move |x| (0..2).map(move |c| [y, x, c])));
            image.iter().zip(places).map(|(value, place)| value * feed.wave(class, place)).sum()
        };
        let found = one["inputs"]
            .to_f64()
            .chunks(pixels)
            .map(|image| {
                (0..5).max_by(|&a, &b| likeness(image, a).total_cmp(&likeness(image, b))).unwrap() as i64
            })
            .collect::<Vec<i64>>();
        let right = found.iter().zip(one["labels"].to_i64()).filter(|(found, label)| *found == label).count();
        assert!(right >= 14, "{found:?} {:?}", one["labels"].to_i64());
        let feed = ImageFeed::new([4, 4, 3], ImageGoal::Clean(1), 2, DType::F32, 3);
        assert_eq!(feed.batch(0).unwrap()["targets"].ty.shape, [2, 4, 4, 1]);
        assert_eq!(feed.resume(&feed.position(7)).unwrap(), 7);
    }
}
