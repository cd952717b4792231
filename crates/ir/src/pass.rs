//! A pass: a named function from one state of a program to the next. The way from a model to the programs of all ranks is
//! two lists of them, one over global graphs and one over those of ranks, see [`Segment`].

use partita_base::{Diagnostic, Result, did_you_mean};

/// A part of the way from a model to programs: what its passes rewrite, and what they may read.
pub trait Segment: Sized {
    /// What a pass takes and returns.
    type State;
    /// What was requested: plan, mesh, options, device. No pass changes it.
    type Context<'a>;
}

/// What a pass works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A model and its plan; a program in text has neither.
    Model,
    /// The graph of one device.
    Graph,
    /// The graph of one device on a mesh, with layouts.
    Mesh,
    /// The local graphs of all ranks, and later their programs.
    Ranks,
}

/// A named step on the way from a model to programs.
pub struct Pass<S: Segment> {
    /// Its name on the command line and in tests.
    pub name: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
    /// What it works on.
    pub form: Form,
    /// Whether this state, of this request, goes through it.
    pub when: for<'a> fn(&S::State, &S::Context<'a>) -> bool,
    /// The pass.
    pub run: for<'a> fn(S::State, &S::Context<'a>) -> Result<S::State>,
}

impl<S: Segment> Pass<S> {
    /// A pass that every state goes through.
    pub const fn always(
        name: &'static str,
        about: &'static str,
        form: Form,
        run: for<'a> fn(S::State, &S::Context<'a>) -> Result<S::State>,
    ) -> Pass<S> {
        Pass { name, about, form, when: |_, _| true, run }
    }
}

/// Sends a state through those of these passes that it has to go through, in order. `after` sees the result of each; its
/// error ends the run.
///
/// # Errors
/// Those of the passes and of `after`.
pub fn run_passes<'p, S: Segment + 'p>(
    passes: impl IntoIterator<Item = &'p Pass<S>>,
    mut state: S::State,
    context: &S::Context<'_>,
    after: &mut dyn FnMut(&Pass<S>, &S::State) -> Result<()>,
) -> Result<S::State> {
    for pass in passes {
        if (pass.when)(&state, context) {
            state = (pass.run)(state, context)?;
            after(pass, &state)?;
        }
    }
    Ok(state)
}

/// E017: no pass has this name.
pub fn no_pass<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Box<Diagnostic> {
    let known: Vec<&str> = known.collect();
    let mut error = Diagnostic::new("E017", format!("there is no pass `{name}`"))
        .expected(format!("one of {}", known.join(", ")));
    error.help = did_you_mean(name, known);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Words;

    impl Segment for Words {
        type State = String;
        type Context<'a> = &'a str;
    }

    const PASSES: &[Pass<Words>] = &[
        Pass::<Words>::always("append", "append the text of the request", Form::Graph, |state, more| {
            Ok(state + more)
        }),
        Pass {
            name: "shorten",
            about: "cut after three letters",
            form: Form::Graph,
            when: |state, _| state.len() > 3,
            run: |state, _| Ok(state[..3].to_string()),
        },
        Pass::<Words>::always("refuse", "refuse what begins with x", Form::Graph, |state, _| {
            match state.starts_with('x') {
                true => Err(Diagnostic::new("E017", "it begins with x")),
                false => Ok(state),
            }
        }),
    ];

    #[test]
    fn passes_run_in_order_and_where_they_apply() {
        let run = |text: &str, more: &str| {
            let mut seen = Vec::new();
            let mut after = |pass: &Pass<Words>, state: &String| {
                seen.push(format!("{} {state}", pass.name));
                Ok(())
            };
            let state = run_passes(PASSES, text.to_string(), &more, &mut after);
            (state.map_err(|error| error.code), seen)
        };
        let all = ["append abcd", "shorten abc", "refuse abc"].map(str::to_string);
        assert_eq!(run("ab", "cd"), (Ok("abc".to_string()), all.to_vec()));
        assert_eq!(run("ab", ""), (Ok("ab".to_string()), vec!["append ab".into(), "refuse ab".into()]));
        assert_eq!(run("x", ""), (Err("E017"), vec!["append x".into()]));
    }

    #[test]
    fn an_error_of_the_observer_ends_the_run() {
        let mut count = 0;
        let mut after = |_: &Pass<Words>, _: &String| {
            count += 1;
            Err(Diagnostic::new("E040", "no memory"))
        };
        assert!(run_passes(PASSES, String::new(), &"", &mut after).is_err());
        assert_eq!(count, 1);
    }
}
