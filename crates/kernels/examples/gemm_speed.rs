//! Ours against the crate. Arguments: filter, seconds per case.
use partita_kernels::*;
use std::time::Instant;

#[repr(C)]
struct Timespec(i64, i64);
unsafe extern "C" {
    fn clock_gettime(clock: i32, time: *mut Timespec) -> i32;
}
fn cpu() -> f64 {
    let mut t = Timespec(0, 0);
    unsafe { clock_gettime(3, &mut t) };
    t.0 as f64 + t.1 as f64 * 1e-9
}
#[target_feature(enable = "avx512f")]
fn peak(n: usize) -> f32 {
    use std::arch::x86_64::*;
    let x = _mm512_set1_ps(std::hint::black_box(1e-3));
    let mut s = [x; 24];
    for _ in 0..n {
        for i in 0..24 {
            s[i] = _mm512_fmadd_ps(x, x, s[i]);
        }
    }
    let mut t = x;
    for i in 0..24 {
        t = _mm512_add_ps(t, s[i]);
    }
    _mm512_reduce_add_ps(t)
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let seconds: f64 = std::env::args().nth(2).map_or(0.4, |s| s.parse().unwrap());
    let which = std::env::args().nth(3).unwrap_or_default();
    let default = [1, 384, 768 << 10, 8, 192, 1, 48, 0];
    let variants: Vec<[usize; 8]> = std::env::args()
        .nth(4)
        .unwrap_or_default()
        .split(';')
        .map(|v| {
            let mut k = default;
            for kv in v.split(',').filter(|s| !s.is_empty()) {
                let (i, x) = kv.split_once('=').unwrap();
                k[i.parse::<usize>().unwrap()] = x.parse().unwrap();
            }
            k
        })
        .collect();
    let shapes: &[[usize; 3]] = &[
        [64, 64, 64],
        [64, 64, 256],
        [64, 256, 64],
        [64, 96, 128],
        [1024, 128, 128],
        [1024, 128, 512],
        [1024, 512, 128],
        [1024, 384, 384],
        [1024, 384, 1536],
        [1024, 1536, 384],
        [256, 768, 768],
        [256, 768, 2304],
        [256, 768, 3072],
        [256, 3072, 768],
        [1024, 1024, 1024],
        [512, 1024, 4096],
        [1024, 4096, 1024],
        [256, 768, 50257],
        [1, 1024, 1024],
        [4, 1024, 1024],
        [1024, 1024, 1],
        [1000, 333, 77],
    ];
    println!(
        "{:<18} {:>15} {:>15} {:>15} {:>15} {:>15} {:>15}",
        "crate / ours", "nn", "nt", "tn", "dx(nn)", "dx(nt)", "tt"
    );
    for &[m, k, n] in shapes {
        let name = format!("{m}x{k}x{n}");
        if !filter.is_empty() && !filter.split(',').any(|f| name == f) {
            continue;
        }
        let fill = |c: usize| (0..c).map(|i| ((i * 7919 % 1000) as f32 - 500.) / 500.).collect::<Vec<f32>>();
        // forward nn, nt; weight gradient dy^T x: [n,m]x[m,k]; input gradients [m,n]x[n,k] nn and nt; tt.
        let cases = [
            ([m, k, n], false, false),
            ([m, k, n], false, true),
            ([n, m, k], true, false),
            ([m, n, k], false, false),
            ([m, n, k], false, true),
            ([m, k, n], true, true),
        ];
        let mut line = format!("{name:<18}");
        for (i, ([m, k, n], ta, tb)) in cases.into_iter().enumerate() {
            if !which.is_empty() && !which.contains(&i.to_string()) {
                continue;
            }
            let (a, b) = (fill(m * k), fill(k * n));
            let (mut x, mut y) = (vec![0f32; m * n], vec![0f32; m * n]);
            let (sa, sb) = ([[m, k], [k, m]][ta as usize], [[k, n], [n, k]][tb as usize]);
            let (mut va, mut vb) = (View::of(&a, &sa), View::of(&b, &sb));
            if ta {
                va = va.permute(&[1, 0]);
            }
            if tb {
                vb = vb.permute(&[1, 0]);
            }
            let (sa, sb) = (va.strides().to_vec(), vb.strides().to_vec());
            let mut best = vec![f64::INFINITY; 2 + variants.len()];
            let begin = Instant::now();
            let flops = (2 * m * k * n) as f64;
            let inner = (2e6 / flops).ceil() as usize;
            while begin.elapsed().as_secs_f64() < seconds {
                let start = cpu();
                std::hint::black_box(unsafe { peak(2000) });
                best[0] = best[0].min((cpu() - start) / (2000. * 24. * 32.));
                let start = cpu();
                for _ in 0..inner {
                    unsafe {
                        gemm::gemm(
                            m,
                            n,
                            k,
                            x.as_mut_ptr(),
                            1,
                            n as isize,
                            false,
                            a.as_ptr(),
                            sa[1],
                            sa[0],
                            b.as_ptr(),
                            sb[1],
                            sb[0],
                            1.0,
                            1.0,
                            false,
                            false,
                            false,
                            gemm::Parallelism::None,
                        );
                    }
                }
                best[1] = best[1].min((cpu() - start) / inner as f64);
                for (i, v) in variants.iter().enumerate() {
                    let _ = v;
                    let start = cpu();
                    for _ in 0..inner {
                        matmul(&va, &vb, &mut ViewMut::of(&mut y, &[m, n]), false, &mut []);
                    }
                    best[2 + i] = best[2 + i].min((cpu() - start) / inner as f64);
                }
            }
            assert!(
                x.iter().zip(&y).all(|(x, y)| (x - y).abs() < 1e-3 * (k as f32).sqrt()),
                "{m} {k} {n} {ta} {tb}"
            );
            line += " |";
            for &b in &best[1..] {
                line += &format!("{:>6.1}", 100. * flops / b * best[0]);
            }
        }
        println!("{line}");
    }
}
