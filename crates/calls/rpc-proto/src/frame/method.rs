//! Hashes that identify methods on the wire.

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// Returns the number of a method on the wire: a hash of `name@version`.
///
/// The hash needs only a good distribution, because names come from programs and not from peers.
/// The registration of a second name with the same hash fails. FNV-1a with a final mix is therefore
/// sufficient. In a constant, the compiler evaluates the hash.
pub const fn method_hash(name: &str, version: u32) -> u64 {
    let mut hash = OFFSET;
    let name = name.as_bytes();
    let mut at = 0;
    while at < name.len() {
        hash = step(hash, name[at]);
        at += 1;
    }
    hash = step(hash, b'@');
    let mut power = 1_000_000_000;
    while power > 0 {
        if version >= power || power == 1 {
            hash = step(hash, b'0' + (version / power % 10) as u8);
        }
        power /= 10;
    }
    stir(hash)
}

const fn step(hash: u64, byte: u8) -> u64 {
    (hash ^ byte as u64).wrapping_mul(PRIME)
}

/// Mixes every bit with every other bit.
///
/// The mix is reversible, so it adds no collisions.
const fn stir(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn plainly(text: &str) -> u64 {
        stir(text.bytes().fold(OFFSET, step))
    }

    #[test]
    fn it_is_the_hash_of_name_at_version() {
        for version in [0, 1, 9, 10, 4_294_967_295, 1_000_000_000, 120] {
            let text = format!("ps.push@{version}");
            assert_eq!(method_hash("ps.push", version), plainly(&text));
        }
        const AT_COMPILE_TIME: u64 = method_hash("", 7);
        assert_eq!(AT_COMPILE_TIME, plainly("@7"));
    }

    #[test]
    fn it_never_changes() {
        assert_eq!(method_hash("ps.push", 1), 13_401_210_049_065_287_099);
    }

    #[test]
    fn many_names_spread() {
        let hashes: BTreeSet<u64> = (0..20_000)
            .flat_map(|n| [method_hash(&format!("m{n}"), 1), method_hash("m", n)])
            .collect();
        assert_eq!(hashes.len(), 40_000);
        let low: BTreeSet<u64> = hashes.iter().map(|hash| hash & 0xff).collect();
        assert_eq!(low.len(), 256);
    }
}
