//! The announcements of one round: lines that nodes append to one value.
//!
//! A line announces a node, or retracts its announcement. Malformed lines are skipped. An announcement is only a
//! request: a node becomes a participant when it, or another node, adds it to the state.

use std::collections::BTreeSet;

use rallypoint_core::Limits;
use rallypoint_core::rendezvous::NodeDesc;

/// Formats a line that announces a node or retracts it. The address is the last field, because it may contain spaces.
pub(super) fn format_line(is_announcement: bool, node: &NodeDesc) -> String {
    let sign = if is_announcement { '+' } else { '-' };
    let addr = node.addr.replace('\\', "\\\\").replace('\n', "\\n");
    format!("{sign} {} {} {addr}\n", node.pid, node.local_id)
}

/// Returns the nodes that were announced and not retracted. A retracted node can't be announced again for the same
/// round.
pub(super) fn parse(lines: &[u8], limits: &Limits) -> Vec<NodeDesc> {
    let nodes_after = |sign: &'static [u8]| {
        let lines = lines.split(|byte| *byte == b'\n').filter_map(move |line| line.strip_prefix(sign));
        let nodes = lines.filter_map(|line| std::str::from_utf8(line).ok().and_then(parse_node));
        nodes.filter(|node| node.addr.len() <= limits.host_len)
    };
    let mut nodes: Vec<NodeDesc> = nodes_after(b"+ ").take(limits.state_nodes).collect();
    // Only the retractions of announced nodes are kept. Otherwise a client could exhaust the memory with retractions.
    let candidates: BTreeSet<&NodeDesc> = nodes.iter().collect();
    let retracted: BTreeSet<NodeDesc> = nodes_after(b"- ").filter(|node| candidates.contains(node)).collect();
    nodes.retain(|node| !retracted.contains(node));
    nodes
}

/// Parses the rest of a line after its sign.
fn parse_node(text: &str) -> Option<NodeDesc> {
    let mut words = text.splitn(3, ' ');
    let (pid, local_id) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let mut addr = String::new();
    let mut chars = words.next()?.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => addr.push(if chars.next()? == 'n' { '\n' } else { '\\' }),
            c => addr.push(c),
        }
    }
    Some(NodeDesc::new(addr, pid, local_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_announced_until_it_is_retracted() {
        let nodes = [NodeDesc::new("a", 1, 0), NodeDesc::new("b c", -2, 3), NodeDesc::new("x\\n\ny", 4, 0)];
        let mut lines: String = nodes.iter().map(|node| format_line(true, node)).collect();
        assert_eq!(parse(lines.as_bytes(), &Limits::default()), nodes);
        lines.push_str(&format_line(false, &nodes[1]));
        assert_eq!(parse(lines.as_bytes(), &Limits::default()), [nodes[0].clone(), nodes[2].clone()]);
    }

    #[test]
    fn malformed_lines_are_skipped() {
        let text = b"+ 1 0 a\n\xff\xfe\n+ x 0 b\n* 1 0 c\n+ 1\n\n+ 99999999999999999999 0 d\n+ 2 0 e";
        let nodes = parse(text, &Limits::default());
        assert_eq!(nodes, [NodeDesc::new("a", 1, 0), NodeDesc::new("e", 2, 0)]);
    }

    #[test]
    fn a_node_whose_retraction_precedes_its_announcement_is_not_announced() {
        let mut text: String = (0..100_000).map(|pid| format!("- {pid} 0 a\n")).collect();
        text += "+ 100000 0 a\n+ 7 0 a\n";
        assert_eq!(parse(text.as_bytes(), &Limits::default()), [NodeDesc::new("a", 100_000, 0)]);
    }

    #[test]
    fn nodes_beyond_the_limits_are_skipped() {
        let mut limits = Limits::default();
        (limits.state_nodes, limits.host_len) = (2, 5);
        let text = "+ 1 0 toolong\n+ 1 0 a\n+ 2 0 a\n+ 3 0 a\n";
        assert_eq!(parse(text.as_bytes(), &limits).len(), 2);
    }
}
