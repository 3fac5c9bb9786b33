//! The parameters of the latency model as the fit uses them: on a scale on which their uncertainty is normal.
//!
//! Parameters are positive and their errors relative, so the fit uses logarithms. The sharpness of the knee exceeds 1
//! and uses the logarithm of its excess; the overlap is a fraction and uses its log-odds. This is the only module that
//! converts between a [`LatencyModel`] and the vector of a linear system.

use super::OperatingPoint;
use super::latency_model::LatencyModel;

/// Number of parameters.
const PARAMETER_COUNT: usize = 7;
/// Step of the numerical derivative, on the scale of the fit.
const STEP: f64 = 1e-4;

/// One value per parameter, in the order of the fields of [`Parameters`].
pub(super) type ParameterVector = [f64; PARAMETER_COUNT];

/// One value per parameter of the [`LatencyModel`], on the scale of the fit: its transformed value, or the standard
/// deviation of that.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// On a logarithmic scale.
    pub fixed_seconds: f64,
    /// On a logarithmic scale.
    pub connection_seconds_per_byte: f64,
    /// On a logarithmic scale.
    pub bottleneck_seconds_per_request: f64,
    /// On a logarithmic scale.
    pub bottleneck_seconds_per_byte: f64,
    /// On a logarithmic scale of the excess over 1.
    pub knee_sharpness: f64,
    /// On a logarithmic scale.
    pub overload_loss: f64,
    /// On the log-odds scale.
    pub overlap: f64,
}

impl Parameters {
    /// The parameters of a model.
    pub(super) fn of_model(model: &LatencyModel) -> Self {
        let overlap = model.overlap.clamp(f64::EPSILON, 1.0 - f64::EPSILON);
        Self {
            fixed_seconds: model.fixed_seconds.ln(),
            connection_seconds_per_byte: model.connection_seconds_per_byte.ln(),
            bottleneck_seconds_per_request: model.bottleneck_seconds_per_request.ln(),
            bottleneck_seconds_per_byte: model.bottleneck_seconds_per_byte.ln(),
            knee_sharpness: (model.knee_sharpness - 1.0).max(f64::EPSILON).ln(),
            overload_loss: model.overload_loss.ln(),
            overlap: (overlap / (1.0 - overlap)).ln(),
        }
    }

    /// The model with these parameters.
    pub(super) fn to_model(self) -> LatencyModel {
        LatencyModel {
            fixed_seconds: self.fixed_seconds.exp(),
            connection_seconds_per_byte: self.connection_seconds_per_byte.exp(),
            bottleneck_seconds_per_request: self.bottleneck_seconds_per_request.exp(),
            bottleneck_seconds_per_byte: self.bottleneck_seconds_per_byte.exp(),
            knee_sharpness: 1.0 + self.knee_sharpness.exp(),
            overload_loss: self.overload_loss.exp(),
            overlap: 1.0 / (1.0 + (-self.overlap).exp()),
        }
    }

    /// The values in the order of the fields.
    pub(super) const fn to_vector(self) -> ParameterVector {
        [
            self.fixed_seconds,
            self.connection_seconds_per_byte,
            self.bottleneck_seconds_per_request,
            self.bottleneck_seconds_per_byte,
            self.knee_sharpness,
            self.overload_loss,
            self.overlap,
        ]
    }

    /// The inverse of [`to_vector`](Self::to_vector).
    pub(super) const fn from_vector(vector: ParameterVector) -> Self {
        let [
            fixed_seconds,
            connection_seconds_per_byte,
            bottleneck_seconds_per_request,
            bottleneck_seconds_per_byte,
            knee_sharpness,
            overload_loss,
            overlap,
        ] = vector;
        Self {
            fixed_seconds,
            connection_seconds_per_byte,
            bottleneck_seconds_per_request,
            bottleneck_seconds_per_byte,
            knee_sharpness,
            overload_loss,
            overlap,
        }
    }

    /// Combines several values of each parameter into one.
    pub(super) fn combine<const N: usize>(all: [Self; N], combine: impl Fn([f64; N]) -> f64) -> Self {
        let vectors = all.map(Self::to_vector);
        Self::from_vector(std::array::from_fn(|i| combine(vectors.map(|vector| vector[i]))))
    }
}

/// The gradient of the log latency at a point with respect to the parameters.
pub(super) fn log_latency_gradient(parameters: &ParameterVector, point: OperatingPoint) -> ParameterVector {
    let log_latency = |vector| Parameters::from_vector(vector).to_model().log_latency(point);
    std::array::from_fn(|i| {
        let (mut above, mut below) = (*parameters, *parameters);
        above[i] += STEP;
        below[i] -= STEP;
        (log_latency(above) - log_latency(below)) / (2.0 * STEP)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::tests::latency_model;

    #[test]
    fn model_survives_the_conversion_to_a_vector() {
        let model = LatencyModel { overlap: 0.3, ..latency_model(1e-3, 200e6, 1000.0, 64e6) };
        let vector = Parameters::of_model(&model).to_vector();
        let converted = Parameters::from_vector(vector).to_model();
        let point = OperatingPoint { bytes: 1 << 20, concurrency: 16 };
        assert!((converted.log_latency(point) - model.log_latency(point)).abs() < 1e-12, "{converted:?}");
        assert!((converted.overlap - 0.3).abs() < 1e-12 && (converted.knee_sharpness - 6.0).abs() < 1e-12);
    }

    #[test]
    fn bounds_of_the_overlap_are_finite() {
        for overlap in [0.0, 1.0] {
            let model = LatencyModel { overlap, knee_sharpness: 1.0, ..latency_model(1e-3, 2e6, 1e3, 64e6) };
            assert!(Parameters::of_model(&model).to_vector().iter().all(|value| value.is_finite()));
        }
    }
}
