use serde::{Deserialize, Serialize};
use springtide::prelude::*;

#[derive(Serialize, Deserialize)]
struct Square(u64);

impl Task for Square {
    type Output = u64;
    const NAME: &'static str = "square";

    fn run(self, _: &Context) -> Result<u64, Stop> {
        Ok(self.0 * self.0)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), springtide::Error> {
    springtide::node(tasks![Square]);
    let grid = Grid::start("1x2").await?;
    println!("first {}", grid.run(Square(7)).await?);
    let squares = grid.map((0..1000).map(Square)).await?;
    println!("sum {}", squares.iter().sum::<u64>());
    Ok(())
}
