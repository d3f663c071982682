//! A picture of spheres on a chequered floor, by tracing rays of light backwards.
//!
//! New here: [`Context::join_all`] runs a list of equal tasks and returns their outputs in order.
//! It splits the list in halves, so a thief takes half of the rest instead of one task. A list of
//! thousands is distributed in few steps. The outputs are large, and [`ByteBuf`] sends them as one
//! block.
//!
//! [`Context::artifact`] hands over a file, which is stored in the run directory wherever the root
//! runs.

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use springtide_runtime::work::{Context, InputError, Job, Outcome, Registry, Stop, Task};

use crate::scene;

/// The job: `springtide run raytracer`.
#[derive(Args, Serialize, Deserialize, Clone, Copy, Debug)]
pub struct Raytracer {
    /// Width of the picture in pixels.
    #[arg(long, default_value_t = 960)]
    pub width: u32,
    /// Height of the picture in pixels.
    #[arg(long, default_value_t = 540)]
    pub height: u32,
    /// Rays a pixel, along each side.
    #[arg(long, default_value_t = 3)]
    pub samples: u32,
    /// Rows of pixels a task: one takes some milliseconds, enough to be worth a steal.
    #[arg(long, default_value_t = 1)]
    pub grain: u32,
}

impl Job for Raytracer {
    const NAME: &'static str = "raytracer";
    const ABOUT: &'static str = "Spheres on a chequered floor, as a PNG file: a list of tasks";

    fn register(registry: &mut Registry) {
        registry.task::<Band>();
    }

    fn prepare(&mut self) -> Result<(), InputError> {
        InputError::check("--width", self.width, 1..=16_384, "it is a number of pixels")?;
        InputError::check("--height", self.height, 1..=16_384, "it is a number of pixels")?;
        InputError::check("--samples", self.samples, 1..=16, "16 gives 256 rays a pixel")?;
        InputError::check("--grain", self.grain, 1..=16_384, "it is a number of rows")
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        let tops = (0..self.height).step_by(self.grain as usize);
        let bands = cx.join_all(tops.map(|top| Band { picture: self, top }))?;
        let pixels: Vec<u8> = bands.into_iter().flat_map(ByteBuf::into_vec).collect();
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header()?.write_image_data(&pixels)?;
        cx.artifact("raytracer.png", file);
        let result = serde_json::json!({ "width": self.width, "height": self.height });
        Ok(Outcome { checksum: springtide_runtime::work::checksum(pixels), result })
    }

    fn benchmark(&self) -> Option<Self> {
        // The same view with fewer pixels and about as many rays.
        let (width, height) =
            (self.width.min(384 / self.samples), self.height.min(216 / self.samples));
        Some(Raytracer { width: width.max(1), height: height.max(1), ..*self })
    }
}

/// The task: some rows of pixels, three bytes each.
#[derive(Serialize, Deserialize)]
struct Band {
    picture: Raytracer,
    top: u32,
}

impl Task for Band {
    type Output = ByteBuf;
    const NAME: &'static str = "raytracer.band";

    fn run(self, _: &Context) -> Result<ByteBuf, Stop> {
        let Raytracer { width, height, samples, grain } = self.picture;
        let rows = self.top..height.min(self.top + grain);
        let pixels = rows.flat_map(|y| (0..width).map(move |x| (x, y)));
        let colour = |(x, y)| scene::pixel((x, y), (width, height), samples);
        Ok(ByteBuf::from(pixels.flat_map(colour).collect::<Vec<u8>>()))
    }

    /// The rays from the eye. Their numbers of reflections differ, but average out over many rows.
    fn cost(&self) -> Option<f64> {
        let Raytracer { width, height, samples, grain } = self.picture;
        let rows = height.saturating_sub(self.top).min(grain);
        Some(f64::from(rows) * f64::from(width) * f64::from(samples).powi(2))
    }
}
