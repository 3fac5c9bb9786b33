//! Cholesky solver for small symmetric positive definite systems, such as covariance matrices of a few dozen rows.

/// The Cholesky factor: lower triangular, stored by rows.
#[derive(Debug, Clone, Default)]
pub struct Cholesky {
    rows: Vec<Vec<f64>>,
}

impl Cholesky {
    /// The Cholesky factor of the `n` by `n` matrix with entries `entry(row, column)`. A matrix that is not positive
    /// definite because of rounding is regularized.
    pub fn new(n: usize, entry: impl Fn(usize, usize) -> f64) -> Self {
        let mut rows: Vec<Vec<f64>> = Vec::with_capacity(n);
        for i in 0..n {
            let mut row = Vec::with_capacity(i + 1);
            for (j, above) in rows.iter().enumerate() {
                row.push((entry(i, j) - dot(&row, &above[..j])) / above[j]);
            }
            let pivot = entry(i, i) - dot(&row, &row);
            row.push(pivot.max(1e-12).sqrt());
            rows.push(row);
        }
        Self { rows }
    }

    /// The inverse of the factor times a vector (whitening): the dot product of whitened `a` and `b` is `a` times the
    /// inverse of the matrix times `b`.
    pub fn whiten(&self, vector: &[f64]) -> Vec<f64> {
        let mut whitened = Vec::with_capacity(vector.len());
        for (row, value) in self.rows.iter().zip(vector) {
            let diagonal = row.len() - 1;
            whitened.push((value - dot(&whitened, &row[..diagonal])) / row[diagonal]);
        }
        whitened
    }

    /// The inverse of the matrix times a vector.
    pub fn solve(&self, vector: &[f64]) -> Vec<f64> {
        let mut solved = self.whiten(vector);
        for i in (0..self.rows.len()).rev() {
            let later: f64 = (i + 1..self.rows.len()).map(|k| self.rows[k][i] * solved[k]).sum();
            solved[i] = (solved[i] - later) / self.rows[i][i];
        }
        solved
    }
}

/// The dot product, over the length of the shorter slice.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn solution_matches_the_known_vector() {
        let matrix = [[4.0, 2.0, 0.4], [2.0, 5.0, 1.0], [0.4, 1.0, 3.0]];
        let factor = Cholesky::new(3, |i, j| matrix[i][j]);
        let expected = [1.0, -2.0, 0.5];
        let vector: Vec<f64> = matrix.iter().map(|row| dot(row, &expected)).collect();
        let solved = factor.solve(&vector);
        assert!(solved.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{solved:?}");
        let whitened = factor.whiten(&vector);
        assert!((dot(&whitened, &whitened) - dot(&vector, &expected)).abs() < 1e-9);
    }
}
