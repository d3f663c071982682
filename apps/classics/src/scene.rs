//! The scene of [`raytracer`](crate::raytracer): spheres on a floor under a sky, and the light from
//! them.
//!
//! Plain arithmetic, independent of tasks. It uses only `+ - * /`, `sqrt` and rounding to integers,
//! which IEEE 754 defines to the last bit. So every machine computes the same picture.

/// A position, a direction, or the red, green and blue of a light.
type V = [f64; 3];

/// Centre, radius, colour, and the share of light that is reflected at normal incidence.
const SPHERES: [(V, f64, V, f64); 9] = [
    ([0.0, 1.0, 1.2], 1.0, [0.95, 0.95, 0.97], 0.75),
    ([-2.1, 0.8, 0.2], 0.8, [0.85, 0.12, 0.08], 0.12),
    ([2.0, 0.75, 0.3], 0.75, [0.95, 0.62, 0.12], 0.35),
    ([-0.95, 0.38, -1.0], 0.38, [0.10, 0.45, 0.75], 0.15),
    ([0.75, 0.45, -0.9], 0.45, [0.12, 0.55, 0.25], 0.10),
    ([-0.1, 0.22, -1.7], 0.22, [0.95, 0.85, 0.35], 0.50),
    ([-3.6, 1.1, 3.4], 1.1, [0.45, 0.25, 0.65], 0.25),
    ([3.7, 1.3, 3.6], 1.3, [0.20, 0.60, 0.65], 0.30),
    ([1.65, 0.20, -1.55], 0.20, [0.90, 0.30, 0.45], 0.10),
];
const EYE: V = [0.4, 1.9, -6.4];
const SUN: V = [-0.70, 0.62, -0.30];

/// `a` plus `s` times `b`.
fn add(a: V, s: f64, b: V) -> V {
    [a[0] + s * b[0], a[1] + s * b[1], a[2] + s * b[2]]
}

fn dot(a: V, b: V) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn unit(a: V) -> V {
    add([0.0; 3], 1.0 / dot(a, a).sqrt(), a)
}

/// The first hit of a ray: distance, the surface's normal, its colour and its reflected share.
fn hit(from: V, way: V) -> Option<(f64, V, V, f64)> {
    let mut nearest = None;
    if way[1] < -1e-9 {
        let distance = -from[1] / way[1];
        let [x, _, z] = add(from, distance, way);
        let tile = (0.8 * x + 0.6 * z).floor() + (0.8 * z - 0.6 * x).floor();
        let colour = if tile as i64 % 2 == 0 { [0.82, 0.80, 0.76] } else { [0.09, 0.10, 0.13] };
        nearest = Some((distance, [0.0, 1.0, 0.0], colour, 0.06));
    }
    for (centre, radius, colour, mirror) in SPHERES {
        let to = add(centre, -1.0, from);
        let along = dot(to, way);
        let inside = along * along - dot(to, to) + radius * radius;
        let distance = along - inside.max(0.0).sqrt();
        if inside > 0.0 && distance > 1e-6 && nearest.is_none_or(|other| distance < other.0) {
            let normal = unit(add(add(from, distance, way), -1.0, centre));
            nearest = Some((distance, normal, colour, mirror));
        }
    }
    nearest
}

fn sky(way: V, sun: V) -> V {
    let height = way[1].max(0.0).sqrt();
    let haze = add([0.80, 0.82, 0.84], height, [-0.76, -0.57, -0.20]);
    // The sun: a power of the cosine, made by squaring. Reflected in spheres, it is their
    // highlight.
    let glow = (0..7).fold(dot(way, sun).max(0.0), |power, _| power * power);
    let disc = (0..4).fold(glow, |power, _| power * power);
    add(add(haze, 0.5 * glow, [1.0, 0.8, 0.5]), 6.0 * disc, [1.0, 0.95, 0.8])
}

/// The light that arrives from the direction of a ray.
fn light(from: V, way: V, sun: V, reflections: u32) -> V {
    let Some((distance, normal, colour, mirror)) = hit(from, way) else { return sky(way, sun) };
    let at = add(add(from, distance, way), 1e-6, normal);
    let lit = dot(normal, sun).max(0.0);
    let sunlight = if lit > 0.0 && hit(at, sun).is_none() { 1.05 * lit } else { 0.0 };
    let skylight = 0.12 + 0.12 * normal[1];
    let tint = add([0.85 * skylight, 0.95 * skylight, 1.15 * skylight], sunlight, [1.0, 0.93, 0.8]);
    let mut seen = [colour[0] * tint[0], colour[1] * tint[1], colour[2] * tint[2]];
    if reflections > 0 {
        let facing = -dot(way, normal);
        // At grazing incidence everything reflects (Schlick's approximation, with the fourth power
        // for the fifth).
        let edge = (1.0 - facing) * (1.0 - facing);
        let share = mirror + (1.0 - mirror) * edge * edge;
        let mirrored = light(at, add(way, 2.0 * facing, normal), sun, reflections - 1);
        seen = add(add(seen, -share, seen), share, mirrored);
    }
    // Distant objects fade into the haze.
    let fade = 1.0 - 1.0 / (1.0 + 0.0006 * distance * distance);
    add(add(seen, -fade, seen), fade, sky([way[0], 0.0, way[2]], sun))
}

/// The colour of a pixel in a picture of this size, from `samples` times `samples` rays.
pub(crate) fn pixel((x, y): (u32, u32), (width, height): (u32, u32), samples: u32) -> [u8; 3] {
    let part = |at: u32| (f64::from(at) + 0.5) / f64::from(samples);
    let rays = samples * samples;
    let mut sum = [0.0; 3];
    for ray in 0..rays {
        // Each ray uses another spot of the sun, so shadows have soft edges.
        let spot = (ray * 7 + x * 5 + y * 3) % rays;
        let sun = unit(add(SUN, 0.07, [part(spot % samples), 0.0, part(spot / samples)]));
        let (x, y) = (f64::from(x) + part(ray % samples), f64::from(y) + part(ray / samples));
        let right = (2.0 * x - f64::from(width)) / f64::from(height);
        let up = 1.0 - 2.0 * y / f64::from(height);
        let way = unit([0.36 * right - 0.05, 0.36 * up - 0.17, 1.0]);
        sum = add(sum, 1.0 / f64::from(rays), light(EYE, way, sun, 5));
    }
    sum.map(|level| (255.0 * level.clamp(0.0, 1.0).sqrt()).round() as u8)
}
