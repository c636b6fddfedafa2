use super::*;

fn floats(shape: &[usize]) -> TensorMeta {
    TensorMeta::contiguous(DataType::F32, shape.to_vec()).unwrap()
}

#[test]
fn a_number_has_no_dimensions_and_one_element() {
    let number = floats(&[]);
    assert_eq!((number.count(), number.byte_len()), (1, 4));
    assert_eq!(number.reach(), 0..4);
    assert!(number.is_contiguous());
}

#[test]
fn an_empty_tensor_covers_nothing_whatever_its_other_dimensions() {
    let empty = floats(&[usize::MAX, 0, usize::MAX]);
    assert_eq!((empty.count(), empty.reach()), (0, 0..0));
    assert!(empty.fits(0).is_ok());
}

#[test]
fn views_move_the_offset_by_bytes() {
    let matrix = floats(&[4, 6]);
    let view = matrix.slice(1, 2..5).unwrap();
    assert_eq!((view.shape(), view.strides()), (&[4, 3][..], &[6, 1][..]));
    assert_eq!((view.offset(), view.reach()), (8, 8..92));
    assert!(!view.is_contiguous());

    let row = matrix.select(0, 3).unwrap();
    assert_eq!((row.shape(), row.reach()), (&[6][..], 72..96));
    let column = matrix.transpose(0, 1).unwrap().select(0, 5).unwrap();
    assert_eq!((column.strides(), column.reach()), (&[6][..], 20..96));
    assert_eq!(matrix.reshape(vec![2, 12]).unwrap().strides(), [12, 1]);
}

#[test]
fn what_is_no_view_is_refused() {
    let matrix = floats(&[4, 6]);
    let text = |result: Result<TensorMeta, MetaError>| result.unwrap_err().to_string();
    assert_eq!(
        text(matrix.slice(1, 2..7)),
        "the range 2 to 7 is not valid for dimension 1, which has 6 elements"
    );
    assert_eq!(
        text(matrix.select(0, usize::MAX)),
        format!(
            "the range {0} to {0} is not valid for dimension 0, which has 4 elements",
            usize::MAX
        )
    );
    assert_eq!(
        text(matrix.transpose(0, 2)),
        "dimension 2 does not exist in a tensor with 2 dimensions"
    );
    assert!(text(matrix.reshape(vec![5, 5])).ends_with("the number of elements differs"));
    let turned = matrix.transpose(0, 1).unwrap();
    assert_eq!(turned.reshape(vec![24]), Err(MetaError::NotContiguous));
}

#[test]
fn strides_that_lead_backwards_are_refused_unless_never_stepped() {
    let signed = |shape: &[usize], strides: &[i64]| {
        TensorMeta::with_signed_strides(DataType::U8, shape.to_vec(), strides, 0)
    };
    assert_eq!(
        signed(&[2, 3], &[3, -1]),
        Err(MetaError::NegativeStride {
            dimension: 1,
            stride: -1
        })
    );
    assert_eq!(signed(&[1, 3], &[-3, 1]).unwrap().strides(), [0, 1]);
}

#[test]
fn what_no_memory_can_hold_is_refused() {
    let new = |shape: &[usize], strides: &[usize], offset| {
        TensorMeta::new(DataType::F64, shape.to_vec(), strides.to_vec(), offset)
    };
    let huge = 1 << 62;
    assert!(matches!(
        new(&[huge, 4], &[4, 1], 0),
        Err(MetaError::TooLarge(_))
    ));
    // A small memory may be repeated very often, but only while the bytes can be counted.
    assert!(new(&[1 << 27], &[0], 0).is_ok());
    assert!(new(&[huge], &[0], 0).is_err());
    assert!(new(&[2], &[usize::MAX], 0).is_err());
    assert!(new(&[2], &[1], usize::MAX - 3).is_err());
    assert!(new(&[0], &[1], usize::MAX).is_err());
    assert_eq!(
        new(&[1; 65], &[1; 65], 0),
        Err(MetaError::TooManyDimensions(65))
    );
    assert!(new(&[1], &[1, 1], 0).is_err());
    assert!(TensorMeta::contiguous(DataType::U8, vec![huge, huge]).is_err());
}

#[test]
fn contiguous_strides_do_not_travel() {
    let there_and_back = |meta: &TensorMeta| {
        let text = serde_json::to_string(meta).unwrap();
        (serde_json::from_str::<TensorMeta>(&text).unwrap(), text)
    };
    let (same, text) = there_and_back(&floats(&[2, 3]));
    assert_eq!(same, floats(&[2, 3]));
    assert!(text.ends_with(r#""strides":[]}"#), "{text}");
    let turned = floats(&[2, 3]).transpose(0, 1).unwrap();
    assert_eq!(there_and_back(&turned).0, turned);
    let number = floats(&[]).at(12).unwrap();
    assert_eq!(there_and_back(&number).0, number);
    let hostile = r#"{"data_type":1,"offset":0,"shape":[4611686018427387904,4],"strides":[]}"#;
    assert!(serde_json::from_str::<TensorMeta>(hostile).is_err());
}
