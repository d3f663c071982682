use springtide::prelude::*;

#[task]
fn square(x: u64) -> u64 {
    x * x
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), springtide::Error> {
    springtide::node(tasks![square]);
    let grid = Grid::start("1x2").await?;
    println!("first {}", grid.run(square(7)).await?);
    let squares = grid.map((0..1000).map(square)).await?;
    println!("sum {}", squares.iter().sum::<u64>());
    Ok(())
}
