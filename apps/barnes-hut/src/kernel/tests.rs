//! Tests of the kernels.

use proptest::prelude::*;

use super::*;

/// Numbers of all magnitudes, with zero and equal ones.
fn number() -> impl Strategy<Value = f32> {
    prop_oneof![Just(0.0f32), Just(0.25), -1f32..1.0, (-1f32..1.0).prop_map(|v| v * 1e-12)]
}

proptest! {
    #[test]
    fn every_path_gives_the_same_bits(
        points in prop::collection::vec(prop::array::uniform4(number()), 1..50),
        sinks in prop::collection::vec(
            prop::array::uniform3(prop::array::uniform16(number())), 1..4
        ),
        softening_squared in prop_oneof![Just(0f32), Just(1e-4), Just(1e-20)],
        potential in any::<bool>(),
    ) {
        let rule = Rule { softening_squared, potential };
        let bits = |kernel: Kernel| {
            let mut sums = vec![[[0.0; LANES]; 4]; sinks.len()];
            kernel.points(&points, &sinks, rule, &mut sums);
            let far = |p: &[f32; 4]| {
                Quad::new([p[0] + 3.0, p[1], p[2]], p[3], &[0.1, 0.2, 0.3, 0.01, -0.02, 0.03])
            };
            let cells: Vec<Quad> = points.iter().map(far).collect();
            kernel.quads(&cells, &sinks, rule, &mut sums);
            sums.into_iter().flatten().flatten().map(f64::to_bits).collect::<Vec<_>>()
        };
        for kernel in Kernel::all() {
            prop_assert_eq!(bits(Kernel::Portable), bits(kernel), "{}", kernel.name());
        }
        let mut sums = vec![[[0.0; LANES]; 4]; sinks.len()];
        let mut plain = sums.clone();
        Kernel::Portable.points(&points, &sinks, rule, &mut sums);
        super::points::<Plain>((), &points, &sinks, rule, &mut plain);
        prop_assert_eq!(sums, plain);
    }
}

proptest! {
    #[test]
    fn every_path_sees_the_same(
        columns in prop::collection::vec(prop::array::uniform4(number()), LANES..60),
        low in prop::array::uniform3(number()),
        size in prop::array::uniform3(0f32..1.0),
    ) {
        let column = |k: usize| columns.iter().map(|c| c[k]).collect::<Vec<_>>();
        let [x, y, z, r] = [0, 1, 2, 3].map(column);
        let balls =
            Balls { middle: [&x, &y, &z], radius_squared: &r, least_squared: &x, scale: 0.7 };
        let cuboid = Cuboid { low, high: [0, 1, 2].map(|k| low[k] + size[k]) };
        let starts: Vec<u32> = (0..=(columns.len() - LANES) as u32).collect();
        let see = |kernel: Kernel, cuboid| {
            let mut looks = Vec::new();
            kernel.look(cuboid, balls, &starts, &mut looks);
            looks
        };
        let plain = see(Kernel::Portable, cuboid);
        for kernel in Kernel::all() {
            prop_assert_eq!(&plain, &see(kernel, cuboid), "{}", kernel.name());
        }
        // From a corner of the box, at most the same balls are undecided.
        let corner = Cuboid { low: cuboid.high, high: cuboid.high };
        for (box_, corner) in plain.iter().zip(see(Kernel::best(), corner)) {
            prop_assert_eq!(box_.far & !corner.far, 0);
            prop_assert_eq!(box_.near & !corner.near, 0);
            prop_assert_eq!(corner.far & corner.near, 0);
            prop_assert_eq!((corner.far | corner.near) & 0xffff, 0xffff);
        }
    }
}

proptest! {
    #[test]
    fn the_fused_operation_is_rounded_once(
        a in any::<u32>(), b in any::<u32>(), c in any::<u32>(), near in -3i32..3, ulps in 0u32..60,
    ) {
        let [a, b, c] = [a, b, c].map(f32::from_bits);
        let same = |a: f32, b: f32, c: f32| {
            let (got, exact) = (fused(a, b, c), a.mul_add(b, c));
            got.to_bits() == exact.to_bits() || got.is_nan() && exact.is_nan()
        };
        prop_assert!(same(a, b, c), "{a:e} {b:e} {c:e}");
        // Sums near half a unit in the last place, and sums that nearly cancel.
        let [a, b] = [a, b].map(|x| f32::from_bits(x.to_bits() & 0x007f_f000 | 0x3f80_0000));
        let tiny = f32::from_bits((127 - 24 - ulps) << 23) * near as f32;
        let cases =
            [(a, b, tiny), (a, b, -a * b), (a, 1.0, tiny), (tiny, a, b), (a, tiny, tiny - 1e-40)];
        for (a, b, c) in cases {
            prop_assert!(same(a, b, c), "{a:e} {b:e} {c:e}");
        }
    }
}

#[test]
fn roots_are_within_their_bounds_over_two_binades() {
    // The seed of 4 s is half that of s, so the numbers from 1 to 4 represent all.
    let (mut root, mut cube, mut low, mut high) = (0f64, 0f64, f64::MAX, 0f64);
    for first in (1f32.to_bits()..4f32.to_bits()).step_by(Plain::COUNT) {
        let s = Plain(std::array::from_fn(|lane| f32::from_bits(first + lane as u32)));
        let parts = inverse_cube((), s);
        let roots = inverse_root((), s);
        for lane in 0..Plain::COUNT {
            let exact = 1.0 / f64::from(s.0[lane]).sqrt();
            let seed = f64::from(parts[0].0[lane]);
            let ratio = seed * seed * f64::from(s.0[lane]);
            (low, high) = (low.min(ratio), high.max(ratio));
            root = root.max((f64::from(roots.0[lane]) * ROOT_LEAD / exact - 1.0).abs());
            let product = parts[0].0[lane] * parts[1].0[lane] * parts[2].0[lane];
            let third = exact * exact * exact;
            cube = cube.max((f64::from(product) * CUBE_LEAD / third - 1.0).abs());
        }
    }
    assert!(low > 0.7499 && high < 0.8438, "{low} {high}");
    assert!(root < 7e-7 && root > 4e-7, "{root}");
    assert!(cube < 7e-7 && cube > 1e-7, "{cube}");
    let near = |s| {
        let [a, b, c] = inverse_cube((), Plain::splat((), s)).map(|part| part.0[0]);
        a * b * c
    };
    assert_eq!(near(1.3 * 4.0) * 8.0, near(1.3));
    assert_eq!(near(1.3 / 65536.0), near(1.3) * 16_777_216.0);
}

#[test]
fn a_sum_without_potential_has_the_same_forces() {
    let sinks = [[[0.5; LANES], [0.1; LANES], [0.0; LANES]]];
    for softening_squared in [0.0, 1e-4] {
        let feel = |potential| {
            let rule = Rule { softening_squared, potential };
            let mut sums = vec![[[0.0; LANES]; 4]];
            let quad = Quad::new([3.0, 1.0, 2.0], 0.5, &[0.1, 0.2, 0.3, 0.01, -0.02, 0.03]);
            Kernel::best().points(&[[1.0, 0.3, 0.2, 0.5]], &sinks, rule, &mut sums);
            Kernel::best().quads(&[quad], &sinks, rule, &mut sums);
            sums[0]
        };
        let (with, without) = (feel(true), feel(false));
        assert_eq!(with[..3], without[..3]);
        assert_eq!(without[3], [0.0; LANES]);
        assert!(with[3][0] < -0.5, "{with:?}");
    }
}

#[test]
fn a_body_alone_has_no_potential() {
    for softening_squared in [0.0, 1e-21, 1e-10, 0.01, 0.3] {
        let mut sums = vec![[[0.0; LANES]; 4]];
        let rule = Rule { softening_squared, potential: true };
        Kernel::best().points(&[[0.0, 0.0, 0.0, 0.7]], &[[[0.0; LANES]; 3]], rule, &mut sums);
        assert_eq!(sums[0][3][0], SelfPotential::new(softening_squared).potential(0.7));
        assert_eq!(sums[0][3][0] < 0.0, softening_squared > POINT_BLIND);
    }
}

#[test]
fn two_points_pull_as_newton_says() {
    let sinks = [[[0.5; LANES], [0.0; LANES], [0.0; LANES]]];
    let mut sums = vec![[[0.0; LANES]; 4]];
    Kernel::best().points(
        &[[1.0, 0.0, 0.0, 0.5], [0.5, 0.0, 0.0, 9.0]],
        &sinks,
        Rule { softening_squared: 0.0, potential: true },
        &mut sums,
    );
    // The second source lies on the sink: without softening it counts as the sink itself.
    for (got, exact) in sums[0].into_iter().zip([2.0, 0.0, 0.0, -1.0]) {
        assert!((got[0] - exact).abs() < 1e-6, "{sums:?}");
    }
}

#[test]
fn a_far_cell_acts_as_its_points_to_third_order() {
    // Four points, seen from increasing distances. The first omitted term is smaller than the
    // monopole by the cube of size / distance: twice the distance gives an eighth of the relative
    // error of the force.
    let cloud: [[f32; 4]; 4] = [
        [0.1, 0.0, 0.05, 0.1],
        [-0.1, 0.1, 0.0, 0.2],
        [0.05, -0.1, 0.1, 0.3],
        [0.0, 0.02, -0.1, 0.4],
    ];
    let mass: f32 = cloud.iter().map(|p| p[3]).sum();
    let com = [0, 1, 2].map(|k| cloud.iter().map(|p| p[k] * p[3]).sum::<f32>() / mass);
    let mut moments = [0.0; 6];
    for p in &cloud {
        let d = [0, 1, 2].map(|k| f64::from(p[k] - com[k]));
        for (k, (i, j)) in [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)].into_iter().enumerate()
        {
            moments[k] += f64::from(p[3]) * d[i] * d[j];
        }
    }
    let quad = Quad::new(com, mass, &moments);
    let rule = Rule { softening_squared: 0.01, potential: true };
    let mut last: Option<f64> = None;
    for distance in [0.8f32, 1.6, 3.2] {
        let d = distance / 14f32.sqrt();
        let sinks = [[[d; LANES], [2.0 * d; LANES], [3.0 * d; LANES]]];
        let feel = |exact: bool| {
            let mut sums = vec![[[0.0; LANES]; 4]];
            if exact {
                Kernel::best().points(&cloud, &sinks, rule, &mut sums);
            } else {
                Kernel::best().quads(&[quad], &sinks, rule, &mut sums);
            }
            sums[0].map(|component| component[0])
        };
        let (exact, near) = (feel(true), feel(false));
        let error = (0..3).map(|k| (exact[k] - near[k]).powi(2)).sum::<f64>().sqrt();
        let relative = error * f64::from(distance).powi(2);
        assert!((exact[3] - near[3]).abs() / exact[3].abs() < 0.02);
        if let Some(last) = last {
            assert!(relative < last / 5.0 + 1e-6, "{relative} after {last} at {distance}");
        }
        last = Some(relative);
    }
}
