//! Pictures of the density of bodies as PNG: seen along z, on a logarithmic scale.
//!
//! Each of the two populations has its own colour ramp, and they mix where they overlap. View and
//! scale are fixed at the start, so that the pictures of a run make a video. This module depends on
//! neither forces nor files.

use serde::{Deserialize, Serialize};

use springtide_runtime::work::{ParallelLoops, Sequential};

use crate::bodies::Bodies;

/// The centre and size of the view and of the picture.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Camera {
    centre: [f64; 2],
    /// Half the width of the view.
    half: f64,
    /// Width and height in pixels.
    size: usize,
}

/// The radius of each blur in pixels of a picture of 800, and its share of a body's light.
///
/// The first leaves a point at the usual size; the others are a glow that shows structure where
/// bodies are few.
const GLOW: [(f64, f32); 3] = [(0.4, 0.3), (1.6, 0.4), (8.0, 0.3)];

/// The colours of a scale at equal steps, dark to bright.
type Ramp = [[f32; 3]; 5];
const ALONE: Ramp = [
    [5.0, 4.0, 14.0],
    [72.0, 18.0, 92.0],
    [196.0, 62.0, 76.0],
    [250.0, 170.0, 70.0],
    [253.0, 252.0, 220.0],
];
const FIRST: Ramp = [
    [5.0, 5.0, 14.0],
    [18.0, 50.0, 112.0],
    [52.0, 124.0, 214.0],
    [146.0, 204.0, 252.0],
    [245.0, 250.0, 255.0],
];
const SECOND: Ramp = [
    [5.0, 5.0, 14.0],
    [104.0, 36.0, 26.0],
    [224.0, 110.0, 44.0],
    [252.0, 202.0, 120.0],
    [255.0, 250.0, 238.0],
];

impl Camera {
    /// A view of `size` by `size` pixels around these bodies: nearly all lie within the inner two
    /// thirds.
    ///
    /// The margin is for bodies that may be ejected.
    pub fn around(bodies: &Bodies, size: u32) -> Self {
        let n = bodies.len().max(1) as f64;
        let mean = |axis: usize| bodies.position.iter().map(|p| p[axis] / n).sum::<f64>();
        let centre = [mean(0), mean(1)];
        let reach = |p: &[f64; 3]| (p[0] - centre[0]).abs().max((p[1] - centre[1]).abs());
        let mut reaches: Vec<f64> = bodies.position.iter().map(reach).collect();
        reaches.sort_unstable_by(f64::total_cmp);
        let most = reaches.get(reaches.len() * 97 / 100).copied().unwrap_or(0.0);
        let half = if most > 0.0 { 1.5 * most } else { 1.0 };
        Self { centre, half, size: size.max(1) as usize }
    }

    /// The same view with another width, if one is given.
    pub fn with_width(self, width: Option<f64>) -> Self {
        Self { half: width.map_or(self.half, |width| 0.5 * width), ..self }
    }

    /// Draws the bodies as PNG on this thread.
    ///
    /// # Errors
    /// The picture cannot be encoded, for example because it is too large for the format.
    pub fn draw(&self, bodies: &Bodies) -> Result<Vec<u8>, png::EncodingError> {
        let Ok(picture) = self.draw_by(&Sequential, bodies);
        picture
    }

    /// As [`draw`](Self::draw), with these loops.
    ///
    /// # Errors
    /// The loops must stop. The inner result is that of [`draw`](Self::draw).
    pub fn draw_by<L: ParallelLoops>(
        &self,
        loops: &L,
        bodies: &Bodies,
    ) -> Result<Result<Vec<u8>, png::EncodingError>, L::Stop> {
        let split = bodies.second.min(bodies.len());
        let populations = bodies.position.split_at(split);
        // The scale: a mean body's light, spread over the whole picture, is one step above black.
        let unit = (self.size * self.size) as f32 / bodies.len().max(1) as f32;
        let lights = loops.parallel_map(0..2, 1, |piece| {
            let population = if piece.start == 0 { populations.0 } else { populations.1 };
            self.light(population, unit)
        })?;
        Ok(self.encode(&lights, populations.1.is_empty()))
    }

    /// Encodes the light of both populations as PNG.
    fn encode(&self, lights: &[Vec<f32>], is_alone: bool) -> Result<Vec<u8>, png::EncodingError> {
        let ramps = if is_alone { [ALONE, ALONE] } else { [FIRST, SECOND] };
        let mut pixels = Vec::with_capacity(lights[0].len() * 3);
        for (&a, &b) in lights[0].iter().zip(&lights[1]) {
            let light = a + b;
            let brightness = ((1.0 + 3.0 * light).ln() / 8.0).clamp(0.0, 1.0);
            let share = if light > 0.0 { b / light } else { 0.0 };
            let [one, other] = ramps.map(|ramp| along(&ramp, brightness));
            for channel in 0..3 {
                let value = one[channel] + (other[channel] - one[channel]) * share;
                pixels.push((value + 0.5) as u8);
            }
        }
        let size = u32::try_from(self.size).unwrap_or(u32::MAX);
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, size, size);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        // A run waits for its pictures, and the file is hardly longer.
        encoder.set_compression(png::Compression::Fast);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&pixels)?;
        writer.finish()?;
        Ok(bytes)
    }

    /// The light in each pixel, from the top left.
    fn light(&self, positions: &[[f64; 3]], unit: f32) -> Vec<f32> {
        let size = self.size;
        let mut points = vec![0.0; size * size];
        let scale = size as f64 / (2.0 * self.half);
        for p in positions {
            // Each body's light is divided among the four pixels around it; y points up.
            let x = (p[0] - self.centre[0] + self.half) * scale - 0.5;
            let y = (self.centre[1] + self.half - p[1]) * scale - 0.5;
            let (column, row) = (x.floor(), y.floor());
            let (right, down) = ((x - column) as f32, (y - row) as f32);
            let corners = [
                (0.0, 0.0, (1.0 - right) * (1.0 - down)),
                (1.0, 0.0, right * (1.0 - down)),
                (0.0, 1.0, (1.0 - right) * down),
                (1.0, 1.0, right * down),
            ];
            for (dx, dy, share) in corners {
                let (column, row) = (column + dx, row + dy);
                let edge = size as f64;
                if (0.0..edge).contains(&column) && (0.0..edge).contains(&row) {
                    points[row as usize * size + column as usize] += share * unit;
                }
            }
        }
        let mut light = vec![0.0; size * size];
        if positions.is_empty() {
            return light;
        }
        for (radius, share) in GLOW {
            let mut layer = points.clone();
            let radius = (radius * size as f64 / 800.0).round() as usize;
            if radius > 0 {
                blur(&mut layer, size, radius);
            }
            for (light, layer) in light.iter_mut().zip(layer) {
                *light += share * layer;
            }
        }
        light
    }
}

/// Three box blurs across and down, close to a Gaussian with a deviation of `radius` * 1.0 to 1.4.
fn blur(image: &mut [f32], size: usize, radius: usize) {
    let mut from = vec![0.0; image.len()];
    let mut sums = vec![0.0; size];
    for _ in 0..3 {
        for (row, from) in image.chunks_exact_mut(size).zip(from.chunks_exact_mut(size)) {
            from.copy_from_slice(row);
            // A sliding sum in double precision, so that subtracted terms leave no error.
            let mut sum: f64 = from.iter().take(radius).map(|v| f64::from(*v)).sum();
            for (i, value) in row.iter_mut().enumerate() {
                sum += from.get(i + radius).map_or(0.0, |v| f64::from(*v));
                if i > radius {
                    sum -= f64::from(from[i - radius - 1]);
                }
                *value = (sum.max(0.0) / (2 * radius + 1) as f64) as f32;
            }
        }
        // All columns together, row by row: memory is read in its order.
        from.copy_from_slice(image);
        let row = |i: usize| from.get(i * size..(i + 1) * size).unwrap_or_default();
        let add = |sums: &mut [f64], row: &[f32], sign: f64| {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += sign * f64::from(*value));
        };
        sums.fill(0.0);
        (0..radius).for_each(|i| add(&mut sums, row(i), 1.0));
        for (i, to) in image.chunks_exact_mut(size).enumerate() {
            add(&mut sums, row(i + radius), 1.0);
            if i > radius {
                add(&mut sums, row(i - radius - 1), -1.0);
            }
            for (value, sum) in to.iter_mut().zip(&sums) {
                *value = (sum.max(0.0) / (2 * radius + 1) as f64) as f32;
            }
        }
    }
}

/// The colour at a point of the ramp, 0 to 1.
fn along(ramp: &Ramp, at: f32) -> [f32; 3] {
    let at = at * (ramp.len() - 1) as f32;
    let below = (at as usize).min(ramp.len() - 2);
    let part = at - below as f32;
    [0, 1, 2].map(|c| ramp[below][c] + (ramp[below + 1][c] - ramp[below][c]) * part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;

    /// Width, height and pixels of a picture.
    fn decode(bytes: &[u8]) -> (u32, u32, Vec<[u8; 3]>) {
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut buffer = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut buffer).unwrap();
        assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
        let pixels = buffer.chunks_exact(3).map(|p| [p[0], p[1], p[2]]).collect();
        (info.width, info.height, pixels)
    }

    #[test]
    fn galaxies_are_bright_apart_and_of_two_colours() {
        let bodies = generate::galaxies(3000, 42);
        let (width, height, pixels) = decode(&Camera::around(&bodies, 200).draw(&bodies).unwrap());
        assert_eq!((width, height), (200, 200));
        let dark = pixels.iter().filter(|p| p.iter().all(|c| *c < 30)).count();
        assert!(dark > 200 * 200 / 4 && dark < 200 * 200 * 9 / 10, "{dark} dark pixels");
        // The first galaxy is to the left and blue, the second to the right and red.
        let half = |left: bool, channel: usize| -> u64 {
            let is_in = |i: &usize| (i % 200 < 100) == left && pixels[*i].iter().any(|c| *c > 40);
            (0..pixels.len()).filter(is_in).map(|i| u64::from(pixels[i][channel])).sum()
        };
        assert!(2 * half(true, 2) > 3 * half(true, 0));
        assert!(2 * half(false, 0) > 3 * half(false, 2));
    }

    #[test]
    fn a_body_is_drawn_where_it_is() {
        let mut bodies = Bodies::default();
        bodies.push([0.5, 0.25, 9.0], [0.0; 3], 1.0);
        let camera = Camera { centre: [0.0, 0.0], half: 1.0, size: 80 };
        let (_, _, pixels) = decode(&camera.draw(&bodies).unwrap());
        let brightest =
            (0..pixels.len()).max_by_key(|i| pixels[*i].map(u32::from).iter().sum::<u32>());
        let brightest = brightest.unwrap();
        // x of 0.5 is at three quarters across; y of 0.25 at three eighths down.
        assert!(
            (59..=60).contains(&(brightest % 80)) && (29..=30).contains(&(brightest / 80)),
            "{brightest}"
        );
    }

    #[test]
    fn a_view_may_have_another_width() {
        let bodies = generate::galaxies(100, 1);
        let camera = Camera::around(&bodies, 50);
        assert_eq!(camera.clone().with_width(None).half, camera.half);
        assert_eq!(camera.with_width(Some(3.0)).half, 1.5);
    }

    #[test]
    fn unusual_sets_of_bodies_can_be_drawn() {
        let mut bodies = Bodies::default();
        let camera = Camera::around(&bodies, 0);
        assert_eq!(decode(&camera.draw(&bodies).unwrap()).0, 1);
        for far in [0.0, 1e100, -1e100, f64::INFINITY, f64::NAN] {
            bodies.push([far, 0.0, 0.0], [0.0; 3], 1.0);
        }
        for size in [1, 2, 33] {
            let seen = Camera { centre: [0.0; 2], half: 1.0, size };
            assert_eq!(decode(&seen.draw(&bodies).unwrap()).2.len(), size * size);
        }
    }

    #[test]
    fn blurring_keeps_the_light() {
        let mut image = vec![0.0; 41 * 41];
        image[20 * 41 + 20] = 1.0;
        blur(&mut image, 41, 3);
        let sum: f32 = image.iter().sum();
        assert!((sum - 1.0).abs() < 1e-4, "{sum}");
        assert_eq!(image[20 * 41 + 17], image[20 * 41 + 23]);
        assert!((image[17 * 41 + 20] - image[20 * 41 + 17]).abs() < 1e-6);
        assert!(image[20 * 41 + 20] < 0.1);
    }
}
