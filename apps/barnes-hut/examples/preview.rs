//! Runs a model on one thread and writes its pictures: `preview DIR [MODEL] [bodies] [steps]
//! [every]`.
//!
//! The job on a grid gives the same pictures as artefacts.

use std::error::Error;
use std::path::PathBuf;

use clap::ValueEnum;
use springtide_barnes_hut::options::{BarnesHut, Model};
use springtide_barnes_hut::picture::Camera;
use springtide_barnes_hut::shared::Setup;
use springtide_barnes_hut::simulate;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("name a folder for the pictures")?);
    let model =
        arguments.next().map_or(Ok(Model::Galaxies), |name| Model::from_str(&name, true))?;
    let bodies = arguments.next().map_or(Ok(20_000), |n| n.parse())?;
    let steps = arguments.next().map_or(Ok(50), |n| n.parse())?;
    let every = arguments.next().map_or(Ok(5), |n| n.parse())?;
    std::fs::create_dir_all(&folder)?;

    let options = BarnesHut { model, bodies, ..BarnesHut::default() };
    let bodies = options.generate();
    let camera = Camera::around(&bodies, options.picture_size);
    let setup = Setup::new(&bodies, options.accuracy());
    let mut failed = None;
    simulate::run(bodies, &setup, options.time_step(), steps, |simulation, report| {
        println!("step {:3} energy error {:9.2e}", report.step, report.energy_error);
        if report.step.is_multiple_of(every) {
            let name = folder.join(format!("density-{:06}.png", report.step));
            let drawn = camera.draw(simulation.bodies()).map_err(Box::<dyn Error>::from);
            let written = drawn.and_then(|png| Ok(std::fs::write(name, png)?));
            failed = failed.take().or(written.err());
        }
    })?;
    failed.map_or(Ok(()), Err)
}
