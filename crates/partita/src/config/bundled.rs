//! The configs that come with the library, by name.

use partita_base::{Diagnostic, Result};

/// The bundled configs: name and text.
pub const BUNDLED: &[(&str, &str)] = &[
    ("mlp", include_str!("../../configs/mlp.toml")),
    ("gpt", include_str!("../../configs/gpt.toml")),
    ("llama", include_str!("../../configs/llama.toml")),
    ("bert", include_str!("../../configs/bert.toml")),
    ("moe-gpt", include_str!("../../configs/moe-gpt.toml")),
    ("mixtral", include_str!("../../configs/mixtral.toml")),
    ("deepseek", include_str!("../../configs/deepseek.toml")),
    ("wide-resnet", include_str!("../../configs/wide-resnet.toml")),
    ("vit", include_str!("../../configs/vit.toml")),
    ("unet", include_str!("../../configs/unet.toml")),
    ("t5", include_str!("../../configs/t5.toml")),
];

/// The text of a bundled config.
///
/// # Errors
/// E005 for a name that none has.
pub fn bundled(name: &str) -> Result<&'static str> {
    let found = BUNDLED.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| {
        let names: Vec<&str> = BUNDLED.iter().map(|(name, _)| *name).collect();
        Diagnostic::new("E005", format!("no bundled config is called `{name}`"))
            .expected(names.join(", "))
            .found(name)
    })
}
