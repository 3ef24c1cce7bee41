use super::*;

#[test]
fn a_shadow_tells_how_many_went_since() {
    let mut at = [9; 5];
    let mut shadows = Shadows::new(&mut at);
    assert_eq!(shadows.returned(1), None);
    (1..4).for_each(|unit| shadows.evicted(unit));
    assert_eq!((shadows.returned(3), shadows.returned(1)), (Some(0), Some(2)));
    assert_eq!(shadows.returned(1), None, "it is used once");
    shadows.evicted(77);
    assert_eq!((shadows.returned(77), shadows.returned(2)), (None, Some(2)));
}
