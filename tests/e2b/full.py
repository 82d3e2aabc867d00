"""R, Java and the libraries of the template code-interpreter-full, by the SDK. Making that template takes minutes, so
`make nightly` runs this, by tests/tests/e2b.rs."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "python"))

from e2b_code_interpreter import Sandbox  # noqa: E402

LIBRARIES = (
    "numpy pandas matplotlib scipy sklearn requests seaborn plotly bokeh bs4 openpyxl cv2 skimage sympy nltk spacy textblob "
    "gensim joblib xlrd docx pytest urllib3 aiohttp librosa soundfile imageio kaleido xarray numba orjson tornado"
).split()


class Full(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.box = Sandbox.create(timeout=900, envs={"OF_SANDBOX": "it's \"here\""})
        cls.addClassCleanup(cls.box.kill)

    def value(self, code, language, **more):
        ran = self.box.run_code(code, language=language, timeout=120, **more)
        self.assertIsNone(ran.error, ran)
        return ran.text

    def test_every_library_of_e2bs_template_is_there(self):
        tried = (
            "import importlib, warnings\nwarnings.simplefilter('ignore')\nfailed = {}\n"
            f"for name in {LIBRARIES!r}:\n    try:\n        importlib.import_module(name)\n"
            "    except Exception as error:\n        failed[name] = repr(error)\nfailed"
        )
        self.assertEqual(self.value(tried, "python"), "{}")

    def test_r(self):
        ran = self.box.run_code('print("Hello, World!")', language="r", timeout=120)
        self.assertEqual(ran.logs.stdout, ['[1] "Hello, World!"\n'])
        self.assertEqual(self.value("Sys.getenv('OF_SANDBOX')", "r"), '[1] "it\'s \\"here\\""')
        self.assertEqual(self.value("Sys.getenv('FOO')", "r", envs={"FOO": "bar"}), '[1] "bar"')
        self.assertEqual(self.value("Sys.getenv('FOO', unset = 'default')", "r"), '[1] "default"')
        self.assertEqual(self.box.run_code("stop('no')", language="r").error.value, "no")

    def test_java(self):
        ran = self.box.run_code('System.out.println("Hello, World!")', language="java", timeout=120)
        self.assertEqual(ran.logs.stdout, ["Hello, World!", "\n"])
        self.assertEqual(self.value('System.getProperty("OF_SANDBOX").length()', "java"), "11")
        self.assertEqual(self.value('System.getProperty("FOO")', "java", envs={"FOO": "bar"}), "bar")
        self.assertEqual(self.value('System.getProperty("FOO", "default")', "java"), "default")
        self.assertEqual(self.value('System.getProperty("OF_SANDBOX")', "java", envs={"OF_SANDBOX": "over"}), "over")
        self.assertEqual(self.value('System.getProperty("OF_SANDBOX").length()', "java"), "11")

    def test_packages_with_manual_pages_are_installed_by_their_own_scripts(self):
        alternatives = self.box.commands.run("update-alternatives --query java").stdout
        self.assertIn("/usr/share/man/man1/java.1.gz", alternatives)


if __name__ == "__main__":
    unittest.main()
