//! Plans in their spellings: what reads back, what is refused.

use super::*;

const DICT: &str = r#"[plan]
"z.*.up_proj" = "colwise"
"a.*.down_proj" = "rowwise(output=shard(1))"
"**" = ["fsdp", "zero1"]
"#;

#[test]
fn the_dictionary_keeps_its_order_and_reads_back() {
    let plan = Plan::from_toml(DICT, "plan.toml").unwrap();
    let globs: Vec<&str> = plan.entries.iter().map(|e| e.modules.as_str()).collect();
    assert_eq!(globs, ["z.*.up_proj", "a.*.down_proj", "**", "**"]);
    assert_eq!(plan.to_dict_toml(), DICT);
    assert_eq!(plan.entries[1].describe(), r#""a.*.down_proj" = "rowwise(output=shard(1))" (plan.toml:3)"#);
}

#[test]
fn tables_keep_origins_and_read_back() {
    let mut plan = Plan::from_toml(DICT, "plan.toml").unwrap();
    plan.add("lm_head", "colwise", "planner").unwrap();
    let text = plan.to_toml();
    assert!(text.contains("[[plan]]"), "{text}");
    assert_eq!(Plan::from_toml(&text, "elsewhere").unwrap(), plan);
}

#[test]
fn listed_stages_are_marks_with_meshes() {
    let text = "[[stages]]\nuntil = \"layers.1\"\nmesh = \"tp=2\"\nranks = [0, 1]\nplan = { \"a\" = \"colwise\" }\n\n[[stages]]\nmesh = \"dp=1\"\n";
    let plan = Plan::from_toml(text, "p.toml").unwrap();
    let calls = "sch[\"layers.1\"].pipeline_split(mesh=\"tp=2\", ranks=[0, 1])\nsch[\"a\"].colwise(stage=0)\nsch.pipeline_split(mesh=\"dp=1\")\n";
    assert_eq!(plan, Plan::from_calls(calls, "").unwrap());
    assert_eq!(plan, Plan::from_toml(&plan.to_toml(), "").unwrap());
    assert_eq!(plan, Plan::from_toml(&plan.to_dict_toml(), "").unwrap());
    for wrong in [
        "stages = 1",
        "stages = [1]",
        "[[stages]]\nuntl = \"a\"",
        "[[stages]]\nuntil = 1",
        "[[stages]]\nuntil = \"a.*\"",
    ] {
        assert_eq!(Plan::from_toml(wrong, "p.toml").unwrap_err().code, "E228", "{wrong}");
    }
}

#[test]
fn lines_of_stages_stay_in_their_stage_in_every_spelling() {
    let text = "[plan]\n\"c.z\" = \"sequence\"\n\n[[stages]]\nuntil = \"layers.0\"\nmesh = \"tp=2\"\n\n[stages.plan]\n\"a.x\" = \"colwise\"\n\n[[stages]]\nmesh = \"fsdp=3\"\n\n[stages.plan]\n\"a.x\" = [\"rowwise\", \"fsdp\"]\n\"b.y\" = \"shard(weight, 0)\"\n";
    let plan = Plan::from_toml(text, "p.toml").unwrap();
    let stages: Vec<Option<usize>> = plan.entries.iter().map(|entry| entry.stage).collect();
    assert_eq!(stages, [None, None, Some(0), None, Some(1), Some(1), Some(1)]);
    assert_eq!(plan.to_dict_toml(), text);
    assert_eq!(plan.entries[4].describe(), "\"a.x\" = \"rowwise(stage=1)\" (p.toml:15)");
    for text in [plan.to_calls(), plan.to_toml()] {
        assert_eq!(Plan::parse(&text, "elsewhere").unwrap(), plan, "{text}");
    }
    // The last stage has no lines.
    let text = "[[stages]]\nuntil = \"a.b\"\n\n[stages.plan]\n\"a.x\" = \"colwise\"\n\n[[stages]]\n";
    assert_eq!(Plan::from_toml(text, "p.toml").unwrap().to_dict_toml(), text);
    // In another order than stages are listed, lines keep their numbers.
    let mut plan = Plan::default();
    plan.add("a", "colwise(stage=1)", "test").unwrap();
    plan.add("a", "colwise(stage=0)", "test").unwrap();
    plan.add("b", "rowwise", "test").unwrap();
    assert_eq!(plan.to_dict_toml().matches("stage=").count(), 2);
    assert_eq!(Plan::from_toml(&plan.to_dict_toml(), "again").unwrap(), plan);
    let code = |text: &str| Plan::from_toml(text, "plan.toml").unwrap_err().code;
    assert_eq!(code("[plan]\n\"a\" = \"colwise(stage=-1)\""), "E222");
    assert_eq!(code("[[plan]]\nmodules = \"a\"\nstyle = \"colwise\"\nstage = \"last\""), "E222");
}

#[test]
fn what_is_no_plan_is_refused() {
    let code = |text: &str| Plan::from_toml(text, "plan.toml").unwrap_err().code;
    assert_eq!(code("[plan"), "E228");
    assert_eq!(code("plan = 3"), "E228");
    assert_eq!(code("[plna]\n\"a\" = \"colwise\""), "E228");
    assert_eq!(code("[plan]\n\"a\" = 3"), "E228");
    assert_eq!(code("[[plan]]\nmodules = \"a\""), "E228");
    assert_eq!(code("[[plan]]\nmodules = \"a\"\nstyel = \"colwise\""), "E228");
    assert_eq!(code("[[plan]]\nmodules = \"a\"\nprimitive = \"shard\"\ntensor = \"b\""), "E222");
    let error = Plan::from_toml("[plan]\n\"a.b\" = \"colwis\"", "plan.toml").unwrap_err();
    assert_eq!((error.code, error.at.as_deref()), ("E222", Some("plan.toml: \"a.b\"")));
    let error =
        Plan::from_toml("[plan]\n\"a\" = \"colwise\"\n\"a\" = \"rowwise\"\n", "plan.toml").unwrap_err();
    assert_eq!((error.code, error.at.as_deref()), ("E228", Some("plan.toml:3")));
    assert_eq!(error.found.as_deref(), Some("duplicate key: \"a\""));
    assert_eq!(Plan::from_toml("", "plan.toml").unwrap(), Plan::default());
}

const CALLS: &str = r#"# The tutorial.
sch["linear1"].shard("weight", 0).shard("bias", 0)  # by hand
sch["linear2"].shard("weight", 1)
sch["linear2"].sync("fwd_post", "all_reduce")
sch["linear1"].sync('bwd_post', 'all_reduce')
sch["linear1"].decompose()
sch.trace(flatten=True)
sch[""].fuse("gelu(x + b) # not a comment", name="bias_gelu", backend="cpu")
sch["layers.*.mlp"].colwise(output=shard(-1), axis="model")
sch["norm"].replace("partita.layer_norm", epsilon=1e-05, x="hidden", at=[0, 2])
"#;

#[test]
fn three_spellings_of_one_plan_read_back_equal() {
    let plan = Plan::parse(CALLS, "plan.py").unwrap();
    let imported = format!("import slapo\n{CALLS}");
    assert_eq!(Plan::parse(&imported, "plan.py").unwrap(), plan);
    assert_eq!(plan.entries.len(), 10);
    assert_eq!((plan.entries[0].origin.as_str(), plan.entries[2].origin.as_str()), ("by hand", "plan.py:3"));
    assert_eq!(plan.entries[7].modules, "");
    for text in [plan.to_calls(), plan.to_toml(), plan.to_dict_toml()] {
        assert_eq!(Plan::parse(&text, "elsewhere").unwrap(), plan, "{text}");
    }
    // Lines for `linear1` come before and after those of `linear2`.
    assert_eq!(plan.to_dict_toml().matches("[[plan]]").count(), 2);
    let origins: Vec<String> =
        Plan::parse(&plan.to_calls(), "elsewhere").unwrap().entries.into_iter().map(|e| e.origin).collect();
    assert_eq!(origins, plan.entries.iter().map(|e| e.origin.clone()).collect::<Vec<_>>());
}

#[test]
fn a_line_that_is_no_call_is_refused_where_it_stands() {
    for (line, code) in [
        ("sch[\"a\"", "E228"),
        ("sch[\"a\"]", "E228"),
        ("sch[\"a\"].shard", "E228"),
        ("sch[a, b].decompose()", "E228"),
        ("sch.shrad(\"weight\", 0)", "E222"),
        ("model[\"a\"].decompose()", "E228"),
    ] {
        let error = Plan::from_calls(&format!("\n{line}\n"), "plan.py").unwrap_err();
        assert_eq!((error.code, error.at.as_deref()), (code, Some("plan.py:2")), "{line}");
    }
}
