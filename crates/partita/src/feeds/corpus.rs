//! The text a model is trained on: the user's own, or the one that is part of Partita.

use crate::config::Data;
use miniz_oxide::inflate::decompress_to_vec_zlib;
use partita_base::Result;
use partita_runtime::data::{Corpus, FileFilter};

/// The name of the bundled text. A text with other bytes gets another name.
pub const BUNDLED_CORPUS: &str = "partita-corpus-1";

/// Its bytes, compressed; a test of the command line documents their source and can make them again.
const COMPRESSED: &[u8] = include_bytes!("../../corpus/partita-corpus-1.zlib");

/// The text of a config: `data.path`, or else [`bundled_corpus`]. E301 and E302 if there is none at that path.
pub fn open_corpus(data: &Data) -> Result<Corpus> {
    let Some(path) = &data.path else { return Ok(bundled_corpus()) };
    let filter = FileFilter { extensions: data.extensions.clone(), max_bytes: data.max_bytes };
    Corpus::open(path, &filter)
}

/// Text that is the same on every machine: Rust sources and documents of this project as they once were.
pub fn bundled_corpus() -> Corpus {
    let text = decompress_to_vec_zlib(COMPRESSED).expect("a test decompresses the bundled text");
    Corpus::from_bytes(BUNDLED_CORPUS, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_named_path_is_read_as_the_config_says_and_no_path_is_the_bundled_text() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.txt"), "abcdef").unwrap();
        fs::write(folder.path().join("b.md"), "ghi").unwrap();
        let mut data = Data {
            path: Some(folder.path().to_path_buf()),
            extensions: None,
            max_bytes: None,
            validation_fraction: 0.0,
            shuffle: false,
        };
        let bytes = |data: &Data| open_corpus(data).unwrap().report().bytes;
        assert_eq!(bytes(&data), 9);
        data.extensions = Some(vec!["txt".into()]);
        assert_eq!(bytes(&data), 6);
        data.max_bytes = Some(4);
        assert_eq!(bytes(&data), 4);
        data.path = None;
        assert_eq!(open_corpus(&data).unwrap().whole().corpus_name(), BUNDLED_CORPUS);
    }
}
