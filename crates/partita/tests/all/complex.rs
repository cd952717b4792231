//! A function of JAX with complex numbers gives on any mesh what JAX computed.

use partita::prelude::*;
use partita_base::InertType;
use partita_ir::TensorType;

/// What `jax.jit(f).lower(..).as_text()` printed of
///
/// ```python
/// def f(w, x):
///     s = jnp.fft.rfft(x, axis=-1) * w
///     y = jnp.fft.irfft(s, n=x.shape[-1])
///     return s, jnp.abs(jnp.fft.fft(y * 1j)).sum(-1)
/// ```
const TEXT: &str = r#"module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4xcomplex<f32>>, %arg1: tensor<4x6xf32>) -> (tensor<4x4xcomplex<f32>> {jax.result_info = "result[0]"}, tensor<4xf32> {jax.result_info = "result[1]"}) {
    %0 = call @fft(%arg1) : (tensor<4x6xf32>) -> tensor<4x4xcomplex<f32>>
    %1 = stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<4xcomplex<f32>>) -> tensor<1x4xcomplex<f32>>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x4xcomplex<f32>>) -> tensor<4x4xcomplex<f32>>
    %3 = stablehlo.multiply %0, %2 : tensor<4x4xcomplex<f32>>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %4 = call @_pad(%3, %c) : (tensor<4x4xcomplex<f32>>, tensor<i32>) -> tensor<4x4xcomplex<f32>>
    %5 = call @fft_0(%4) : (tensor<4x4xcomplex<f32>>) -> tensor<4x6xf32>
    %6 = stablehlo.convert %5 : (tensor<4x6xf32>) -> tensor<4x6xcomplex<f32>>
    %cst = stablehlo.constant dense<(0.000000e+00,1.000000e+00)> : tensor<complex<f32>>
    %7 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<complex<f32>>) -> tensor<4x6xcomplex<f32>>
    %8 = stablehlo.multiply %6, %7 : tensor<4x6xcomplex<f32>>
    %9 = call @fft_1(%8) : (tensor<4x6xcomplex<f32>>) -> tensor<4x6xcomplex<f32>>
    %10 = stablehlo.abs %9 : (tensor<4x6xcomplex<f32>>) -> tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = stablehlo.reduce(%10 init: %cst_0) applies stablehlo.add across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    return %3, %11 : tensor<4x4xcomplex<f32>>, tensor<4xf32>
  }
  func.func private @fft(%arg0: tensor<4x6xf32>) -> tensor<4x4xcomplex<f32>> {
    %0 = stablehlo.fft %arg0, type = RFFT, length = [6] : (tensor<4x6xf32>) -> tensor<4x4xcomplex<f32>>
    return %0 : tensor<4x4xcomplex<f32>>
  }
  func.func private @_pad(%arg0: tensor<4x4xcomplex<f32>>, %arg1: tensor<i32>) -> tensor<4x4xcomplex<f32>> {
    %0 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<complex<f32>>
    %1 = stablehlo.pad %arg0, %0, low = [0, 0], high = [0, 0], interior = [0, 0] : (tensor<4x4xcomplex<f32>>, tensor<complex<f32>>) -> tensor<4x4xcomplex<f32>>
    return %1 : tensor<4x4xcomplex<f32>>
  }
  func.func private @fft_0(%arg0: tensor<4x4xcomplex<f32>>) -> tensor<4x6xf32> {
    %0 = stablehlo.fft %arg0, type = IRFFT, length = [6] : (tensor<4x4xcomplex<f32>>) -> tensor<4x6xf32>
    return %0 : tensor<4x6xf32>
  }
  func.func private @fft_1(%arg0: tensor<4x6xcomplex<f32>>) -> tensor<4x6xcomplex<f32>> {
    %0 = stablehlo.fft %arg0, type = FFT, length = [6] : (tensor<4x6xcomplex<f32>>) -> tensor<4x6xcomplex<f32>>
    return %0 : tensor<4x6xcomplex<f32>>
  }
}
"#;

fn complex(shape: &[usize], numbers: &[[f64; 2]]) -> Literal {
    let ty = TensorType::new(DType::Inert(InertType::Complex64), shape);
    Literal::from_complex(&ty, numbers.iter().copied())
}

#[test]
fn a_function_of_jax_with_complex_numbers_runs_on_any_mesh() {
    let w = complex(&[4], &[[1.0, 0.0], [0.0, 2.0], [0.5, -1.0], [3.0, 0.0]]);
    let x = Literal::from_f64(&TensorType::new(DType::F32, [4, 6]), (0..24).map(|n| f64::from(n % 5)));
    let spectra = [
        [[10.0, 0.0], [-1.7320509, -11.0], [-2.8480763, -0.7990378], [6.0, 0.0]],
        [[11.0, 0.0], [6.9282026, -6.0], [2.7320507, -1.1339743], [-9.0, 0.0]],
        [[12.0, 0.0], [6.928203, 4.0], [0.23205066, 3.8660254], [6.0, 0.0]],
        [[13.0, 0.0], [-1.7320508, 9.0], [-2.848076, -0.799038], [-9.0, 0.0]],
    ];
    let sizes = [44.187138, 44.24638, 41.745968, 46.246384];
    for mesh in ["dp=1", "dp=2", "dp=3", "dp=2,tp=2"] {
        let results = partita::run_function(TEXT, "f.mlir", None, &[w.clone(), x.clone()], mesh).unwrap();
        assert_eq!(results[0].ty.to_string(), "tensor<4x4xcomplex<f32>>");
        for (found, expected) in results[0].to_complex().iter().zip(spectra.as_flattened()) {
            let apart = (found[0] - expected[0]).abs().max((found[1] - expected[1]).abs());
            assert!(apart < 1e-4, "{mesh}: {found:?} instead of {expected:?}");
        }
        for (found, expected) in results[1].to_f64().iter().zip(sizes) {
            assert!((found - expected).abs() < 1e-4, "{mesh}: {found} instead of {expected}");
        }
    }
}

#[test]
fn an_op_on_complex_numbers_without_a_counterpart_is_evaluated_on_one_rank_alone() {
    let text = "func.func @main(%z: tensor<2xcomplex<f32>>) -> tensor<2xcomplex<f32>> {\n\
                %0 = stablehlo.power %z, %z : tensor<2xcomplex<f32>>\nreturn %0 : tensor<2xcomplex<f32>>\n}";
    let z = complex(&[2], &[[1.0, 0.0], [2.0, 0.0]]);
    let run = |mesh: &str| partita::run_function(text, "f.mlir", None, std::slice::from_ref(&z), mesh);
    assert_eq!(run("dp=1").unwrap()[0].to_complex(), [[1.0, 0.0], [4.0, 0.0]]);
    let error = run("dp=2").unwrap_err();
    assert!(error.code == "E170" && error.message.contains("stablehlo.power"), "{error}");
}
