use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::tensor::DataType;

/// Returns the offsets of all bytes, in the order of the indices.
fn bytes_of(meta: &TensorMeta) -> Vec<usize> {
    let Some(coverage) = Coverage::in_order(meta) else {
        return Vec::new();
    };
    let blocks = coverage.blocks();
    blocks
        .flat_map(|start| start..start + coverage.block)
        .collect()
}

fn floats(shape: &[usize]) -> TensorMeta {
    TensorMeta::contiguous(DataType::F32, shape.to_vec()).unwrap()
}

fn plan_of(metas: &[&TensorMeta]) -> Plan {
    let views: Vec<_> = metas
        .iter()
        .map(|&meta| View { storage: 0, meta })
        .collect();
    plan(&views)
}

fn contents(plan: &Plan) -> Vec<&Content> {
    plan.parts.iter().map(|part| &part.content).collect()
}

#[test]
fn bytes_without_gaps_are_sent_as_they_lie() {
    let matrix = floats(&[8, 8]);
    let rows = matrix.slice(0, 2..5).unwrap();
    let turned = rows.transpose(0, 1).unwrap();
    let planned = plan_of(&[&turned]);
    assert_eq!(contents(&planned), [&Content::Slice(64..160)]);
    assert_eq!(planned.placements[0].meta.strides(), [1, 8]);
    assert_eq!(planned.placements[0].meta.offset(), 0);
}

#[test]
fn a_number_seen_often_is_sent_once() {
    let wide = TensorMeta::new(DataType::F64, vec![1 << 27, 3], vec![0, 0], 16).unwrap();
    let planned = plan_of(&[&wide]);
    assert_eq!(contents(&planned), [&Content::Slice(16..24)]);
    assert_eq!(planned.placements[0].meta.strides(), [0, 0]);
}

#[test]
fn a_view_with_gaps_is_sent_without_them() {
    let columns = floats(&[8, 8]).slice(1, 1..3).unwrap();
    let planned = plan_of(&[&columns]);
    assert_eq!(planned.parts[0].len(), 8 * 2 * 4);
    assert_eq!(planned.placements[0].meta.strides(), [2, 1]);
    // A transposed view stays transposed: memory is read in its own order.
    let planned = plan_of(&[&columns.transpose(0, 1).unwrap()]);
    assert_eq!(planned.parts[0].len(), 8 * 2 * 4);
    assert_eq!(planned.placements[0].meta.strides(), [1, 2]);
}

#[test]
fn the_same_tensor_twice_is_one_part() {
    let columns = floats(&[8, 8]).slice(1, 1..3).unwrap();
    let planned = plan_of(&[&columns, &columns.transpose(0, 1).unwrap()]);
    assert_eq!(planned.parts.len(), 1);
    assert_eq!(planned.parts[0].len(), 64);
}

#[test]
fn a_tensor_and_its_views_are_one_part_as_it_lies() {
    let matrix = floats(&[8, 8]);
    let column = matrix.select(1, 7).unwrap();
    let row = matrix.select(0, 7).unwrap();
    let planned = plan_of(&[&column, &row, &matrix]);
    assert_eq!(contents(&planned), [&Content::Slice(0..256)]);
    assert_eq!(planned.placements[0].meta.strides(), [8]);
    assert_eq!(planned.placements[1].meta.offset(), 224);
}

#[test]
fn overlapping_views_with_gaps_are_packed_together() {
    let matrix = floats(&[8, 10]);
    let left = matrix.slice(1, 0..3).unwrap();
    let right = matrix.slice(1, 2..5).unwrap();
    let planned = plan_of(&[&left, &right]);
    assert_eq!(planned.parts.len(), 1);
    assert_eq!(planned.parts[0].len(), 8 * 5 * 4);
    assert_eq!(planned.placements[0].meta.strides(), [5, 1]);
    assert_eq!(planned.placements[1].meta.offset(), 8);
}

#[test]
fn views_that_only_interleave_are_parts_of_their_own() {
    let matrix = floats(&[8, 10]);
    let left = matrix.slice(1, 0..3).unwrap();
    let right = matrix.slice(1, 3..5).unwrap();
    let planned = plan_of(&[&right, &left]);
    assert_eq!(planned.parts.len(), 2);
    assert_eq!(planned.placements[0].meta.strides(), [2, 1]);
    assert_eq!(planned.placements[1].meta.strides(), [3, 1]);
}

#[test]
fn what_strides_cannot_describe_is_sent_with_zeros_in_its_gaps() {
    let every_second = TensorMeta::new(DataType::U8, vec![4], vec![2], 0).unwrap();
    let every_third = TensorMeta::new(DataType::U8, vec![4], vec![3], 0).unwrap();
    let planned = plan_of(&[&every_second, &every_third]);
    let mut sent = Vec::new();
    planned.parts[0].write(&(1..11).collect::<Vec<u8>>(), &mut sent);
    assert_eq!(sent, [1, 0, 3, 4, 5, 0, 7, 0, 0, 10]);
}

#[test]
fn a_lone_irregular_view_becomes_contiguous_if_that_is_smaller() {
    let odd = TensorMeta::new(DataType::U8, vec![3, 3], vec![1000, 999], 5).unwrap();
    let planned = plan_of(&[&odd]);
    assert_eq!(planned.parts[0].len(), 9);
    assert_eq!(planned.placements[0].meta.strides(), [3, 1]);
}

#[test]
fn storages_are_never_mixed_and_nothing_needs_no_part() {
    let one = floats(&[4]);
    let empty = floats(&[0, 4]).at(400).unwrap();
    let views = [(7, &one), (3, &one), (7, &empty)].map(|(storage, meta)| View { storage, meta });
    let planned = plan(&views);
    let storages: Vec<_> = planned.parts.iter().map(|part| part.storage).collect();
    assert_eq!(storages, [3, 7]);
    let parts = planned.placements.iter().map(|placement| placement.part);
    assert_eq!(parts.collect::<Vec<_>>(), [Some(1), Some(0), None]);
}

/// Some view of a storage of a few hundred bytes.
fn any_meta() -> impl Strategy<Value = TensorMeta> {
    let dimension = (1..5_usize, prop_oneof![0..4_usize, 0..16_usize]);
    let data_type = prop::sample::select(vec![DataType::U8, DataType::F16, DataType::I32]);
    (
        prop::collection::vec(dimension, 0..4),
        data_type,
        0..40_usize,
    )
        .prop_map(|(dimensions, data_type, offset)| {
            let (shape, strides) = dimensions.into_iter().unzip();
            TensorMeta::new(data_type, shape, strides, offset * 2).unwrap()
        })
}

/// Slices of one matrix, as programs make them.
fn any_slices() -> impl Strategy<Value = Vec<TensorMeta>> {
    let slice = (
        0..6_usize,
        1..6_usize,
        0..10_usize,
        1..10_usize,
        any::<bool>(),
    );
    prop::collection::vec(slice, 1..5).prop_map(|slices| {
        let matrix = floats(&[6, 10]);
        let view = |(row, rows, column, columns, turned): (usize, usize, usize, usize, bool)| {
            let part = matrix.slice(0, row..(row + rows).min(6)).unwrap();
            let part = part.slice(1, column..(column + columns).min(10)).unwrap();
            if turned {
                part.transpose(0, 1).unwrap()
            } else {
                part
            }
        };
        slices.into_iter().map(view).collect()
    })
}

fn holds(metas: &[TensorMeta]) -> Result<(), TestCaseError> {
    let planned = plan_of(&metas.iter().collect::<Vec<_>>());
    let size = metas.iter().map(|meta| meta.reach().end).max().unwrap_or(0);
    // Bytes that no tensor covers are marked with 0xee, and other bytes have smaller values.
    let mut storage = vec![0xee_u8; size];
    for byte in metas.iter().flat_map(bytes_of) {
        storage[byte] = u8::try_from(byte % 191).unwrap();
    }
    let parts: Vec<Vec<u8>> = planned
        .parts
        .iter()
        .map(|part| {
            let mut sent = Vec::new();
            part.write(&storage[part.reach()], &mut sent);
            assert_eq!(sent.len(), part.len());
            sent
        })
        .collect();
    prop_assert!(parts.iter().flatten().all(|&byte| byte != 0xee));

    let mut first_seen = BTreeMap::new();
    for (number, (meta, placement)) in metas.iter().zip(&planned.placements).enumerate() {
        prop_assert_eq!(meta.shape(), placement.meta.shape());
        prop_assert_eq!(meta.data_type(), placement.meta.data_type());
        let Some(part) = placement.part else {
            prop_assert!(meta.is_empty());
            continue;
        };
        placement.meta.fits(parts[part].len()).unwrap();
        for (from, to) in bytes_of(meta).into_iter().zip(bytes_of(&placement.meta)) {
            prop_assert_eq!(storage[from], parts[part][to]);
            let (first, target) = *first_seen.entry(from).or_insert((number, (part, to)));
            prop_assert!(first == number || target == (part, to), "aliasing is lost");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_views_arrive_as_they_were(metas in prop::collection::vec(any_meta(), 0..5)) {
        holds(&metas)?;
    }

    #[test]
    fn slices_of_a_matrix_arrive_as_they_were(metas in any_slices()) {
        holds(&metas)?;
    }

    #[test]
    fn a_slice_is_sent_in_exactly_its_bytes(metas in any_slices()) {
        let planned = plan_of(&[&metas[0]]);
        prop_assert_eq!(planned.parts[0].len(), metas[0].byte_len());
    }
}
