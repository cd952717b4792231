//! Matrices as pointer and strides: the operands of matmul kernels.

use crate::view::{View, ViewMut};

/// A readable matrix: its first element, and the elements to the next row and to the next column.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<C> {
    pub pointer: *const C,
    pub row: isize,
    pub column: isize,
}

/// A writable matrix.
#[derive(Clone, Copy)]
pub(crate) struct MatrixMut<C> {
    pub pointer: *mut C,
    pub row: isize,
    pub column: isize,
}

impl<C> Matrix<C> {
    /// A row-major matrix.
    pub(crate) fn of(elements: &[C], columns: usize) -> Self {
        Matrix { pointer: elements.as_ptr(), row: columns as isize, column: 1 }
    }

    /// The last two dimensions of a view as rows and columns, from its first element.
    pub(crate) fn of_view(view: &View<'_>) -> Self {
        let rank = view.rank();
        Matrix {
            pointer: view.as_ptr().cast(),
            row: view.strides()[rank - 2],
            column: view.strides()[rank - 1],
        }
    }

    pub(crate) fn cast<D>(self) -> Matrix<D> {
        Matrix { pointer: self.pointer.cast(), row: self.row, column: self.column }
    }

    pub(crate) fn transposed(self) -> Self {
        Matrix { row: self.column, column: self.row, ..self }
    }

    /// The matrix from row `row` on.
    #[inline(always)]
    pub(crate) fn rows_after(self, row: usize) -> Self {
        Matrix { pointer: self.pointer.wrapping_offset(row as isize * self.row), ..self }
    }

    /// The matrix from column `column` on.
    #[inline(always)]
    pub(crate) fn columns_after(self, column: usize) -> Self {
        Matrix { pointer: self.pointer.wrapping_offset(column as isize * self.column), ..self }
    }
}

impl<C> MatrixMut<C> {
    /// A row-major matrix.
    pub(crate) fn of(elements: &mut [C], columns: usize) -> Self {
        MatrixMut { pointer: elements.as_mut_ptr(), row: columns as isize, column: 1 }
    }

    /// The last two dimensions of a view as rows and columns, from its first element.
    pub(crate) fn of_view(view: &mut ViewMut<'_>) -> Self {
        let rank = view.rank();
        let (row, column) = (view.strides()[rank - 2], view.strides()[rank - 1]);
        MatrixMut { pointer: view.as_mut_ptr().cast(), row, column }
    }

    /// The same matrix, to be read.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn read(self) -> Matrix<C> {
        Matrix { pointer: self.pointer, row: self.row, column: self.column }
    }

    pub(crate) fn cast<D>(self) -> MatrixMut<D> {
        MatrixMut { pointer: self.pointer.cast(), row: self.row, column: self.column }
    }

    /// The matrix from row `row` on.
    #[inline(always)]
    pub(crate) fn rows_after(self, row: usize) -> Self {
        MatrixMut { pointer: self.pointer.wrapping_offset(row as isize * self.row), ..self }
    }

    /// The matrix from column `column` on.
    #[inline(always)]
    pub(crate) fn columns_after(self, column: usize) -> Self {
        MatrixMut { pointer: self.pointer.wrapping_offset(column as isize * self.column), ..self }
    }
}
