//! The shared positions of bodies, published once a step, and the tree that each node builds from
//! them and from the [constants](Setup) of the run.
//!
//! Positions are sent in single precision relative to a box. Forces are computed for these rounded
//! positions, also by a sequential run. Inside the box lengths are measured in its sides and masses
//! in the mass unit. Both are powers of two, so scaling changes no bit, and single precision is far
//! from overflow for any units of the user. Positions can be sent as their change in a step
//! ([`Positions::change_to`]), which is lossless and shorter. This module does not depend on tasks.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_runtime::work::{BuiltOnce, Context, ParallelLoops, Sequential, Stop, collect};

use crate::bounds::CubeBounds;
use crate::delta::{self, BEFORE, BODY, Delta, Malformed, PositionFrame};
use crate::loops::BODIES_PER_PIECE;
use crate::setup::float;
pub use crate::setup::{Accuracy, Setup};
use crate::tree::{BodyTree, TreeScratch};

/// The places of bodies: a box and, within it, positions in single precision. Each step has a new
/// version.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Positions {
    /// The present box, in the user's unit, and positions.
    frame: PositionFrame,
    /// Up to [`BEFORE`] former frames, newest first, which decode the next change.
    ///
    /// Versions made by changes have them, so a late node that gets such a version whole can decode
    /// the next changes. The first positions of a root have none.
    before: Vec<PositionFrame>,
    /// The error of a change that could not be decoded; then there are no positions.
    #[serde(skip)]
    broken: Option<Malformed>,
    /// Built by the first task of a node that needs it.
    #[serde(skip)]
    tree: BuiltOnce<BodyTree>,
}

/// The change from one version of the positions to the next.
#[derive(Debug, Serialize, Deserialize)]
pub struct PositionsChange {
    delta: Delta,
    /// The sender of the change has its result already. It is not sent.
    #[serde(skip)]
    made: Option<Positions>,
}

impl PositionsChange {
    /// The approximate number of bytes on the wire.
    pub fn wire_len(&self) -> usize {
        self.delta.wire_len()
    }
}

/// The reason why positions have no tree.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// Masses and positions do not belong together.
    #[error("positions of {positions} bodies cannot go with masses of {masses}")]
    Mismatch {
        /// The number of bodies with positions.
        positions: usize,
        /// The number of bodies with masses.
        masses: usize,
    },
    /// The positions could not be decoded, for a change does not belong to the former ones.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// The maximum number of bodies of a change: positions and former frames must fit into a shared
/// object of 1 GiB.
const MOST_CHANGED: usize = 25_000_000;

impl Positions {
    /// Rounds positions to single precision within a box around the middle of the bodies, on this
    /// thread.
    ///
    /// The side is at least a millionth of the softening length; smaller distances do not change
    /// forces.
    pub fn new(position: &[[f64; 3]], softening: f64) -> Self {
        let Ok(positions) = Self::rounded(&Sequential, position, softening);
        positions
    }

    /// As [`Positions::new`], with these loops.
    ///
    /// # Errors
    /// The loops must stop.
    pub fn rounded<L: ParallelLoops>(
        loops: &L,
        position: &[[f64; 3]],
        softening: f64,
    ) -> Result<Self, L::Stop> {
        let (centre, side) = CubeBounds::of_all(loops, position)?.cube(softening);
        let inside: Vec<[[u8; 4]; 3]> = collect(loops, position.len(), BODIES_PER_PIECE, |body| {
            let place = &position[body];
            [0, 1, 2].map(|axis| (((place[axis] - centre[axis]) / side) as f32).to_le_bytes())
        })?;
        let inside = inside.into_flattened().into_flattened().into();
        Ok(Self::at(PositionFrame { centre, side, inside }, Vec::new()))
    }

    fn at(frame: PositionFrame, before: Vec<PositionFrame>) -> Self {
        Self { frame, before, broken: None, tree: BuiltOnce::default() }
    }

    /// The middle of the box in the user's unit.
    pub fn centre(&self) -> [f64; 3] {
        self.frame.centre
    }

    /// The side of the box in the user's unit; a power of two.
    pub fn side(&self) -> f64 {
        self.frame.side
    }

    /// The change from these positions to `next`; none if it is not shorter than `next` itself.
    pub fn change_to(&self, next: &Positions) -> Option<PositionsChange> {
        if self.len() > MOST_CHANGED {
            return None;
        }
        let delta = delta::encode(&self.frame, &self.before, &next.frame)?;
        let made = Some(Self::at(next.frame.clone(), self.become_before()));
        Some(PositionsChange { delta, made }).filter(|change| change.wire_len() < next.wire_len())
    }

    /// Applies a change: the result has the bits of the argument of [`Positions::change_to`].
    ///
    /// A change of other positions gives positions of no bodies, which have [no
    /// tree](TreeError::Malformed).
    pub fn changed(&self, change: PositionsChange) -> Self {
        let PositionsChange { delta, made } = change;
        if let Some(made) = made {
            return made;
        }
        match delta::decode(&self.frame, &self.before, &delta) {
            Ok(frame) => Self::at(frame, self.become_before()),
            Err(why) => {
                let nothing = PositionFrame { inside: Bytes::new(), ..self.frame };
                Self { broken: Some(why), ..Self::at(nothing, Vec::new()) }
            }
        }
    }

    /// The former frames of the next version.
    fn become_before(&self) -> Vec<PositionFrame> {
        std::iter::once(&self.frame).chain(&self.before).take(BEFORE).cloned().collect()
    }

    /// The approximate number of bytes on the wire.
    pub fn wire_len(&self) -> usize {
        const REST: usize = 48;
        let frames = std::iter::once(&self.frame).chain(&self.before);
        frames.map(|frame| frame.inside.len() + REST).sum()
    }

    /// The box and the positions in it.
    pub fn frame(&self) -> &PositionFrame {
        &self.frame
    }

    /// The number of bodies.
    pub fn len(&self) -> usize {
        self.frame.len()
    }

    /// Whether there are no bodies.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Each body's position in sides from the middle of the box.
    pub(crate) fn inside(&self) -> Vec<[f32; 3]> {
        self.places().collect()
    }

    /// A body's position in sides from the middle of the box.
    #[inline]
    pub(crate) fn place(&self, body: usize) -> [f32; 3] {
        let bytes = &self.frame.inside[BODY * body..BODY * (body + 1)];
        [0, 4, 8].map(|at| float(&bytes[at..at + 4]))
    }

    /// Iterates over each body's position in sides from the middle of the box.
    pub(crate) fn places(&self) -> impl ExactSizeIterator<Item = [f32; 3]> + '_ {
        let place = |bytes: &[u8]| [0, 4, 8].map(|at| float(&bytes[at..at + 4]));
        self.frame.inside.chunks_exact(BODY).map(place)
    }

    /// The tree over these positions, built at the first call, on the calling thread.
    ///
    /// It is a pure function of the two objects, so each node has the same. A job has one setup, so
    /// the first result holds for all calls.
    ///
    /// # Errors
    /// [`TreeError`] if the setup is for another number of bodies, or the positions could not be
    /// decoded.
    pub fn tree(&self, setup: &Setup) -> Result<&BodyTree, TreeError> {
        self.check(setup)?;
        Ok(self.tree.get_or_init(|| BodyTree::build(self, setup)))
    }

    /// The tree over these positions. The first task that needs it builds it with these loops, and
    /// calls `lap` with the name of each stage at its end; other tasks wait.
    ///
    /// # Errors
    /// As [`Positions::tree`], or the task is halted.
    pub(crate) fn tree_by(
        &self,
        cx: &Context<'_>,
        setup: &Setup,
        (loops, scratch): (&impl ParallelLoops<Stop = Stop>, &mut TreeScratch),
        lap: &mut dyn FnMut(&'static str),
    ) -> Result<&BodyTree, Stop> {
        self.check(setup)?;
        self.tree.get_or_build(cx, || BodyTree::build_in_stages(loops, self, setup, scratch, lap))
    }

    /// As [`tree_by`](Self::tree_by), with the loops of the task.
    ///
    /// # Errors
    /// As [`tree_by`](Self::tree_by).
    pub(crate) fn tree_in(&self, cx: &Context<'_>, setup: &Setup) -> Result<&BodyTree, Stop> {
        self.tree_by(cx, setup, (cx, &mut TreeScratch::default()), &mut |_| {})
    }

    fn check(&self, setup: &Setup) -> Result<(), TreeError> {
        if let Some(why) = self.broken {
            return Err(why.into());
        }
        if self.len() != setup.len() {
            return Err(TreeError::Mismatch { positions: self.len(), masses: setup.len() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::wire::{decode_payload, encode_payload};

    use super::*;
    use crate::loops::OneThread;
    use crate::options::{BarnesHut, Model};
    use crate::setup::CellExpansion;
    use crate::{generate, simulate};

    #[test]
    fn positions_are_rounded_within_their_box() {
        let position = [[1e10, -3.0, 0.1], [1e10 + 5.0, 2.0, 0.2], [1e10 + 1.0, 0.0, 0.3]];
        let shared = Positions::new(&position, 0.0);
        assert_eq!(shared.side(), 8.0);
        let inside = shared.inside();
        for (p, q) in position.iter().zip(&inside) {
            for axis in 0..3 {
                assert!(q[axis].abs() <= 0.5);
                let back = shared.centre()[axis] + f64::from(q[axis]) * shared.side();
                assert!((back - p[axis]).abs() < 2e-6, "{back} for {}", p[axis]);
            }
        }
        let bytes = serde_json::to_vec(&shared).unwrap();
        let copy: Positions = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(copy.inside(), inside);
    }

    fn copy<T: Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
        decode_payload(&encode_payload(value).unwrap()).unwrap()
    }

    /// The positions of the first steps of a run.
    fn run(model: Model, count: usize, steps: u64) -> (Setup, Vec<Positions>) {
        let job = BarnesHut { model, ..BarnesHut::default() };
        let bodies = match model {
            Model::Galaxies => generate::galaxies(count, 7),
            _ => generate::plummer(count, 7),
        };
        let setup = Setup::new(&bodies, job.accuracy());
        let mut all = Vec::new();
        simulate::run(bodies, &setup, job.time_step(), steps, |simulation, _| {
            all.push(simulation.positions(&OneThread).unwrap());
        })
        .unwrap();
        (setup, all)
    }

    #[test]
    fn changes_give_every_node_the_bits_of_the_whole_and_are_shorter() {
        for (model, bound) in [(Model::Galaxies, 7.4), (Model::Plummer, 3.9)] {
            let (_, all) = run(model, 3000, 8);
            // The root, a node that is there from the start, and one that gets a later version
            // whole.
            let mut root = all[0].clone();
            let mut node = copy(&root);
            let mut late = None;
            for (step, next) in all.iter().enumerate().skip(1) {
                let change = root.change_to(next).expect("it is shorter");
                let bytes = change.wire_len() as f64 / 3000.0;
                let wire = encode_payload(&change).unwrap();
                assert!(wire.len() <= change.wire_len() && wire.len() + 64 > change.wire_len());
                assert!(step < 3 || bytes < bound, "step {step} of {model:?}: {bytes}");
                node = node.changed(copy(&change));
                root = root.changed(change);
                late = match late {
                    _ if step == 3 => Some(copy(&node)),
                    late => {
                        late.map(|late: Positions| late.changed(decode_payload(&wire).unwrap()))
                    }
                };
                for positions in [&root, &node].into_iter().chain(&late) {
                    assert_eq!(positions.frame, next.frame, "step {step}");
                    assert_eq!(positions.broken, None);
                }
            }
            assert!(late.is_some());
            assert_eq!(node.before.len(), BEFORE);
            assert_eq!(encode_payload(&node).unwrap(), encode_payload(&root).unwrap());
        }
    }

    /// Earlier versions of the program send no error of cells.
    #[test]
    fn setups_without_an_error_are_read() {
        #[derive(Serialize)]
        struct Earlier {
            order: CellExpansion,
            theta: f64,
            softening: f64,
            leaf: u32,
            group: u32,
            mass_unit: f64,
            #[serde(with = "serde_bytes")]
            masses: Vec<u8>,
        }
        let (order, theta, softening, leaf, group) = (CellExpansion::Quad, 0.7, 0.01, 16, 256);
        let masses = 0.25f32.to_le_bytes().to_vec();
        let earlier = Earlier { order, theta, softening, leaf, group, mass_unit: 2.0, masses };
        let setup: Setup = decode_payload(&encode_payload(&earlier).unwrap()).unwrap();
        assert_eq!((setup.error, setup.group, setup.masses().collect()), (None, 256, vec![0.25]));
    }

    #[test]
    fn few_bodies_are_sent_whole() {
        let (_, all) = run(Model::Plummer, 5, 2);
        assert!(all[0].change_to(&all[1]).is_none());
        let (_, more) = run(Model::Plummer, 6, 2);
        assert!(all[0].change_to(&more[1]).is_none());
    }

    #[test]
    fn a_change_of_other_positions_is_refused() {
        let (setup, all) = run(Model::Galaxies, 500, 2);
        let change = all[0].change_to(&all[1]).unwrap();
        let broken = all[1].changed(copy(&change));
        let error = broken.tree(&setup).unwrap_err();
        assert!(matches!(error, TreeError::Malformed(_)), "{error}");
        // Nor do later changes give positions.
        let next = all[1].change_to(&all[2]).unwrap();
        let error = broken.changed(copy(&next)).tree(&setup).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a change of the positions of 500 bodies cannot go with 0 bodies"
        );
        let error = copy(&broken).tree(&setup).unwrap_err();
        assert_eq!(error.to_string(), "positions of 0 bodies cannot go with masses of 500");
        assert!(all[0].changed(copy(&change)).tree(&setup).is_ok());
    }
}
