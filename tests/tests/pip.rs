//! `pip install` in the built-in templates: by the user and by root, into the Python of the system.

#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_tests::{Options, json, run_with};

/// Makes a wheel by hand and installs it without an index.
const INSTALL: &str = r#"set -e
cd "$(mktemp -d)"
python3 - <<'END'
import zipfile
with zipfile.ZipFile("of_test-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("of_test.py", "answer = 42\n")
    wheel.writestr("of_test-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: of-test\nVersion: 1.0\n")
    wheel.writestr("of_test-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("of_test-1.0.dist-info/RECORD", "")
END
/usr/bin/python3 -m pip install --no-index --disable-pip-version-check --quiet ./of_test-1.0-py3-none-any.whl
cd / && /usr/bin/python3 -c 'import of_test; print(of_test.answer)'"#;

#[test]
fn pip_installs_into_the_python_of_every_built_in_template() {
    run_with(Options { templates: vec!["host"], ..Options::debian() }, async |world| {
        let client = world.tenant("acme").await;
        for template in ["debian", "host"] {
            let id = client.create(json!({ "template": template })).await;
            for ran in [client.sh(&id, INSTALL).await, client.sh_root(&id, INSTALL).await] {
                assert_eq!((ran.code, ran.stdout.as_str()), (0, "42\n"), "{template}: {ran:?}");
            }
        }
    });
}
