//! The shape of a grid on this host: clusters, nodes and threads.

/// The shape of a local grid: `3x2` is three clusters of two nodes, `3x2@4` has four threads per
/// node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridShape {
    /// The number of clusters.
    pub clusters: u32,
    /// The number of nodes per cluster.
    pub nodes: u32,
    /// The number of compute threads per node.
    pub threads: u32,
}

impl Default for GridShape {
    fn default() -> Self {
        Self { clusters: 3, nodes: 2, threads: 1 }
    }
}

/// The maximum number of nodes on one host: a larger number is assumed to be a typing error.
const NODES_MAX: u32 = 512;

impl std::str::FromStr for GridShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (grid, threads) = text.split_once('@').unwrap_or((text, "1"));
        let number = |text: &str| text.parse().ok().filter(|n| (1..=NODES_MAX).contains(n));
        let shape = grid.split_once('x').and_then(|(clusters, nodes)| {
            let (clusters, nodes) = (number(clusters)?, number(nodes)?);
            let threads = number(threads)?;
            (clusters * nodes <= NODES_MAX).then_some(Self { clusters, nodes, threads })
        });
        shape.ok_or_else(|| {
            format!(
                "must be clusters x nodes such as 3x2, or 3x2@4 with 4 threads per node, with at \
                most {NODES_MAX} nodes"
            )
        })
    }
}

impl std::fmt::Display for GridShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.clusters, self.nodes)?;
        if self.threads > 1 { write!(f, "@{}", self.threads) } else { Ok(()) }
    }
}

impl GridShape {
    /// The names of the clusters.
    pub fn names(&self) -> impl Iterator<Item = String> + use<> {
        const NAMES: [&str; 12] =
            ["ams", "del", "bud", "lis", "osl", "prg", "rom", "sof", "tal", "vie", "war", "zag"];
        (0..self.clusters as usize)
            .map(|n| NAMES.get(n).map_or_else(|| format!("c{}", n + 1), |name| (*name).to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        let shape = |text: &str| text.parse::<GridShape>().ok();
        assert_eq!(shape("3x2"), Some(GridShape::default()));
        assert_eq!(shape("1x16@4"), Some(GridShape { clusters: 1, nodes: 16, threads: 4 }));
        for bad in ["", "3", "x", "0x2", "3x0", "3x2@0", "3x2@", "-1x2", "3x2x1", "1000x1", "30x30"]
        {
            assert_eq!(shape(bad), None, "{bad}");
        }
        let names: Vec<_> = GridShape { clusters: 14, ..GridShape::default() }.names().collect();
        assert_eq!((names[0].as_str(), names[12].as_str()), ("ams", "c13"));
        for text in ["3x2", "2x1@8"] {
            assert_eq!(text.parse::<GridShape>().unwrap().to_string(), text);
        }
    }
}
