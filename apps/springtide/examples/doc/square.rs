// The task that the examples in the documentation share. They include this file.

#[derive(serde::Serialize, serde::Deserialize)]
struct Square(u64);

impl springtide::prelude::Task for Square {
    type Output = u64;
    const NAME: &'static str = "square";

    fn run(self, _: &springtide::prelude::Context) -> Result<u64, springtide::prelude::Stop> {
        Ok(self.0 * self.0)
    }
}
