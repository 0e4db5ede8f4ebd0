//! Who wants to be in a round, as a list that only grows: one line for each that comes and for each that is taken back.
//! Lines that can't be read are passed over; nobody's word in here is more than a wish.

use std::collections::BTreeSet;

use rallypoint_core::Limits;
use rallypoint_core::rendezvous::NodeDesc;

/// One line: who comes, or is taken back. The address goes last, because it may hold anything but a line's end.
pub(super) fn line(comes: bool, node: &NodeDesc) -> String {
    let sign = if comes { '+' } else { '-' };
    let addr = node.addr.replace('\\', "\\\\").replace('\n', "\\n");
    format!("{sign} {} {} {addr}\n", node.pid, node.local_id)
}

/// Who has come and was not taken back. Nobody who was taken back comes again in the same round.
pub(super) fn read(lines: &[u8], limits: &Limits) -> Vec<NodeDesc> {
    let all = || {
        let lines = lines.split(|byte| *byte == b'\n');
        let read = lines.filter_map(|line| std::str::from_utf8(line).ok().and_then(read_line));
        read.filter(|(_, node)| node.addr.len() <= limits.host_len)
    };
    let coming = all().filter(|(comes, _)| *comes).map(|(_, node)| node);
    let mut here: Vec<NodeDesc> = coming.take(limits.state_nodes).collect();
    // Twice over the list, so as not to remember more of those who go than there are of those who have come.
    let known: BTreeSet<&NodeDesc> = here.iter().collect();
    let going = all().filter(|(comes, node)| !comes && known.contains(node));
    let gone: BTreeSet<NodeDesc> = going.map(|(_, node)| node).collect();
    here.retain(|node| !gone.contains(node));
    here
}

fn read_line(line: &str) -> Option<(bool, NodeDesc)> {
    let mut words = line.splitn(4, ' ');
    let comes = match words.next()? {
        "+" => true,
        "-" => false,
        _ => return None,
    };
    let (pid, local_id) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let mut addr = String::new();
    let mut letters = words.next()?.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => addr.push(if letters.next()? == 'n' { '\n' } else { '\\' }),
            letter => addr.push(letter),
        }
    }
    Some((comes, NodeDesc::new(addr, pid, local_id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_is_here_until_it_is_taken_back() {
        let nodes = [NodeDesc::new("a", 1, 0), NodeDesc::new("b c", -2, 3), NodeDesc::new("x\\n\ny", 4, 0)];
        let mut lines: String = nodes.iter().map(|node| line(true, node)).collect();
        assert_eq!(read(lines.as_bytes(), &Limits::default()), nodes);
        lines.push_str(&line(false, &nodes[1]));
        assert_eq!(read(lines.as_bytes(), &Limits::default()), [nodes[0].clone(), nodes[2].clone()]);
    }

    #[test]
    fn what_is_no_line_is_passed_over() {
        let text = b"+ 1 0 a\n\xff\xfe\n+ x 0 b\n* 1 0 c\n+ 1\n\n+ 99999999999999999999 0 d\n+ 2 0 e";
        let read = read(text, &Limits::default());
        assert_eq!(read, [NodeDesc::new("a", 1, 0), NodeDesc::new("e", 2, 0)]);
    }

    #[test]
    fn who_was_never_here_is_not_remembered_for_being_taken_back() {
        let mut text: String = (0..100_000).map(|pid| format!("- {pid} 0 a\n")).collect();
        text += "+ 100000 0 a\n+ 7 0 a\n";
        assert_eq!(read(text.as_bytes(), &Limits::default()), [NodeDesc::new("a", 100_000, 0)]);
    }

    #[test]
    fn a_list_or_an_address_beyond_the_limits_is_cut() {
        let mut limits = Limits::default();
        (limits.state_nodes, limits.host_len) = (2, 5);
        let text = "+ 1 0 toolong\n+ 1 0 a\n+ 2 0 a\n+ 3 0 a\n";
        assert_eq!(read(text.as_bytes(), &limits).len(), 2);
    }
}
