//! Actors across nodes: one greeter on each node, called from the program.

use serde::{Deserialize, Serialize};
use springtide::actix::{Actor, Context, Handler};
use springtide::{Grid, remote_message, tasks};

/// The actor, which counts the greetings on its node.
struct Greeter {
    greeted: u32,
}

impl Actor for Greeter {
    type Context = Context<Self>;
}

/// The message, which has a name on the wire and a type of answer.
#[derive(Serialize, Deserialize)]
struct Greet {
    name: String,
}

remote_message! { "greet" => Greet -> String; }

impl Handler<Greet> for Greeter {
    type Result = String;

    fn handle(&mut self, greet: Greet, _: &mut Context<Self>) -> String {
        self.greeted += 1;
        let process = std::process::id();
        format!("hello {}, number {} in process {process}", greet.name, self.greeted)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), springtide::Error> {
    let greeter = || Greeter { greeted: 0 };
    springtide::node(tasks![].actor("greeter", greeter, |actor| actor.accepts::<Greet>()));
    let grid = Grid::start("2x1").await?;
    for node in grid.nodes().await? {
        let greeter = grid.actor::<Greeter>(&node, "greeter");
        match greeter.send(Greet { name: "world".to_owned() }).await {
            Ok(answer) => println!("{node}: {answer}"),
            Err(error) => println!("{node} does not answer: {error}"),
        }
    }
    Ok(())
}
