//! Tests of `primitive`.

use super::*;

#[test]
fn primitives_read_back_what_they_print() {
    for text in [
        "shard(weight, 0)",
        "shard(output, -1, axis=dp)",
        "sync(fwd_post, all_reduce)",
        "sync(fwd_post, reduce_scatter, dim=1, axis=model)",
        "sync(fwd_pre, all_gather)",
        "sync(fwd_pre, \"RS->SR\")",
        "checkpoint",
        "checkpoint(\"relu(x)\")",
        "decompose",
        "trace",
        "trace(flatten=true)",
        "fuse(\"gelu(x + b)\", name=bias_gelu, backend=cpu, at=[0, 2])",
        "replace(partita.layer_norm, epsilon=1e-5, x=hidden)",
        "replace(mine, pattern=\"a + b\", at=[1])",
        "replace(mine, ops=3)",
        "replace(mine, ops=\"0:3\", x=hidden)",
        "replace_all(LayerNorm, partita.layer_norm, epsilon=1e-5)",
        "pipeline_split",
        "pipeline_split(mesh=\"tp=2\", ranks=[0, 1])",
        "layers(4)",
        "layers(4, remat=true)",
        "annotate(weight, replicated_param, true)",
        "precision(bf16)",
        "offload(optimizer)",
        "offload(activations, ahead=3)",
        "fork_rng",
        "colwise(output=shard(1))",
        "shard(0)",
    ] {
        let primitive = Primitive::parse(text).unwrap();
        assert_eq!(primitive.to_string(), text);
        assert_eq!(Primitive::parse(&primitive.to_call().quoted()).unwrap(), primitive, "{text}");
    }
    for (theirs, ours) in [
        ("shard(\"weight\", axis=0)", "shard(weight, 0)"),
        (
            "sync(mode=\"fwd_post\", sync_op_or_fn=\"all_gather\", axis=1)",
            "sync(fwd_post, all_gather, dim=1)",
        ),
        (
            "fuse(\"gelu(x)\", compiler=\"TorchScript\", name=\"BiasGeLU\")",
            "fuse(\"gelu(x)\", name=BiasGeLU, backend=TorchScript)",
        ),
    ] {
        assert_eq!(Primitive::parse(theirs).unwrap().to_string(), ours);
    }
    let named = Primitive::parse("shard(dim=1, tensor=weight)").unwrap();
    assert_eq!(named.to_string(), "shard(weight, 1)");
    let keys: Vec<String> = named.named_arguments().into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["tensor", "dim"]);
}

#[test]
fn wrong_arguments_are_named() {
    for (text, what) in [
        ("shrad(weight, 0)", "`shard"),
        ("shard(weight)", "`dim` is missing"),
        ("shard(weight, zero)", "`dim` is not an integer"),
        ("shard(weight, 0, tp, 1)", "at most 3"),
        ("shard(weight, 0, axes=tp)", "`axis`"),
        ("shard(weight, 0, dim=1)", "given twice"),
        ("sync(fwd, all_reduce)", "fwd_pre"),
        ("sync(fwd_post, all_reduec)", "`all_reduce`"),
        ("sync(fwd_post, \"RS->XX\")", "op of sync"),
        ("sync(fwd_post, my_reduce)", "follow from the layouts before and after"),
        ("precision(i32)", "bf16"),
        ("fuse(\"a + b\", name=x, at=[-1])", "numbers from 0"),
        ("replace(mine, ops=\"3\")", "`first:end`"),
        ("replace(mine, ops=-1)", "`first:end`"),
        ("replace(mine, pattern=\"a + b\", ops=1)", "by number or by pattern"),
        ("shard(weight, 0, axis=1)", "given twice"),
    ] {
        let error = Primitive::parse(text).unwrap_err();
        assert_eq!(error.code, "E222", "{text}");
        assert!(error.to_string().contains(what), "{text}: {error}");
    }
    for op in
        ["my_fn", "\"hooks.reduce\"", "partial(reduce_forward_output, group=none)", "lambda x, y: x + y"]
    {
        let error = Primitive::parse(&format!("sync(fwd_post, {op})")).unwrap_err();
        assert_eq!(error.code, "E263", "{op}");
        let text = error.to_string();
        assert!(text.contains("all_reduce, all_gather, reduce_scatter, scatter"), "{text}");
        assert!(text.contains("follow from the layouts before and after"), "{text}");
    }
}
