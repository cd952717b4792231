//! Gathers rows of a table by index (embedding lookup), and sums rows by index (its gradient).

use bytemuck::{cast_slice, cast_slice_mut};
use partita_base::{Diagnostic, Result};

use crate::convert::Cast;
use crate::element::Element;
use crate::element::{Number, dispatch};
use crate::scalar::Scalar;
use crate::tiles::{Reader, TILE, TileBytes, Writer, tiles};
use crate::view::{View, ViewMut};

/// The row id at position `at`, as a signed number.
fn id_at(ids: &View<'_>, reader: &Reader<'_>, at: usize) -> i64 {
    let mut scratch = [0u64];
    let bytes = reader.tile(at, 1, cast_slice_mut(&mut scratch));
    dispatch!(index ids.dtype(), T => Scalar::from_bytes(T::DTYPE, bytes).get::<T>().cast())
}

fn check(table: &[usize], ids: &[usize], rows: &[usize]) {
    assert!(table.len() == 2 && rows.len() == ids.len() + 1, "rows {rows:?} of {table:?} by ids {ids:?}");
    assert!(
        rows.starts_with(ids) && rows[ids.len()] == table[1],
        "rows {rows:?} of {table:?} by ids {ids:?}"
    );
}

/// `out[i, :] = table[ids[i], :]`: `table` is [V, D], `ids` an integer [..], `out` [.., D].
///
/// # Errors
/// E423 if an id is outside `0..V`; the rows before it have been written.
///
/// # Panics
/// Where shapes or types do not fit.
pub fn gather_rows(table: &View<'_>, ids: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    check(table.shape(), ids.shape(), out.shape());
    assert_eq!(table.dtype(), out.dtype(), "a gather keeps the type");
    let (rows, width) = (table.shape()[0], table.shape()[1]);
    let (reader, id_reader) = (Reader::new(table), Reader::new(ids));
    let mut writer = Writer::new(out);
    let mut scratch: TileBytes = [0; TILE];
    for i in 0..ids.len() {
        let id = id_at(ids, &id_reader, i);
        let row = usize::try_from(id).ok().filter(|&row| row < rows).ok_or_else(|| {
            Diagnostic::new("E423", format!("row id {id} at position {i} is outside the table"))
                .expected(format!("0..{rows}"))
                .found(id.to_string())
        })?;
        for (start, count) in tiles(width) {
            let tile = reader.tile(row * width + start, count, cast_slice_mut(&mut scratch));
            match writer.tile(i * width + start, count) {
                Some(into) => into.copy_from_slice(tile),
                None => writer.store(i * width + start, tile),
            }
        }
    }
    Ok(())
}

/// `out[ids[i], :] += updates[i, :]` in order of i, which makes the sum deterministic; ids outside `0..V` are
/// dropped. `updates` is [.., D], `ids` an integer [..], `out` [V, D]. Each addition rounds to the element
/// type.
///
/// # Panics
/// Where shapes or types do not fit.
pub fn scatter_add_rows(updates: &View<'_>, ids: &View<'_>, out: &mut ViewMut<'_>) {
    check(out.shape(), ids.shape(), updates.shape());
    assert_eq!(updates.dtype(), out.dtype(), "a scatter keeps the type");
    dispatch!(out.dtype(), T => scatter_add::<T>(updates, ids, out))
}

fn scatter_add<T: Element>(updates: &View<'_>, ids: &View<'_>, out: &mut ViewMut<'_>) {
    let (rows, width) = (out.shape()[0], out.shape()[1]);
    let (reader, id_reader) = (Reader::new(updates), Reader::new(ids));
    let mut scratch: [TileBytes; 2] = [[0; TILE]; 2];
    let [update_scratch, sum_scratch] = &mut scratch;
    for i in 0..ids.len() {
        let Some(row) = usize::try_from(id_at(ids, &id_reader, i)).ok().filter(|&row| row < rows) else {
            continue;
        };
        let mut target = out.reborrow().index(0, row);
        for (start, count) in tiles(width) {
            let update = reader.typed::<T>(i * width + start, count, update_scratch);
            let mut writer = Writer::new(&mut target);
            if let Some(tile) = writer.tile(start, count) {
                add_into::<T>(cast_slice_mut(tile), update);
                continue;
            }
            let sum: &mut [u8] = &mut cast_slice_mut(sum_scratch)[..count * size_of::<T>()];
            let view = target.as_view();
            Reader::new(&view).tile(start, count, sum);
            add_into::<T>(cast_slice_mut(sum), update);
            Writer::new(&mut target).store(start, cast_slice(&*sum));
        }
    }
}

fn add_into<T: Element>(sum: &mut [T], update: &[T]) {
    for (sum, &update) in sum.iter_mut().zip(update) {
        *sum = T::store(sum.load().plus(update.load()));
    }
}
