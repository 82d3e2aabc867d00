// Between the host and one Java context, by the JDK's own shell. Runs inside the sandbox.
// In:  a line "x ID BYTES VARIABLES", then VARIABLES lines "NAME=value" with the value percent-encoded, then BYTES of code.
// Out: what the code writes, between markers: RS ID word ... RS, as bridge.R has them. A process of Java can't change its own
//      environment, so its variables, and those of one execution, are system properties too.
import java.io.*;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.*;
import jdk.jshell.*;

public class Bridge {
    static final PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    static final PrintStream err = new PrintStream(new FileOutputStream(FileDescriptor.err), true, StandardCharsets.UTF_8);

    static volatile boolean stopped;

    static void mark(PrintStream to, String words) {
        to.print("\u001e" + words + "\u001e");
        to.flush();
    }

    static void told(String id, String word, String text) {
        mark(out, id + " " + word);
        out.print(text);
        mark(out, id + " q");
    }

    // LIMIT: of one literal in a class file.
    static final int LITERAL_MAX = 16_000;

    static String literal(String text) {
        var quoted = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            if (one < 256 && !Character.isLetterOrDigit(one)) quoted.append(String.format("\\%03o", (int) one));
            else if (one < 128) quoted.append(one);
            else quoted.append(String.format("\\u%04x", (int) one));
        }
        return quoted.append('"').toString();
    }

    // Sets properties where the code runs, which is another process; null clears one.
    static void properties(JShell shell, Map<String, String> values) {
        var code = new StringBuilder();
        values.forEach((name, value) -> {
            if (value == null) code.append("System.clearProperty(" + literal(name) + ");");
            else if (value.length() <= LITERAL_MAX) code.append("System.setProperty(" + literal(name) + "," + literal(value) + ");");
        });
        if (code.length() > 0) shell.eval("{" + code + "}");
    }

    static String line(InputStream in) throws IOException {
        var bytes = new ByteArrayOutputStream();
        for (int one = in.read(); one != '\n'; one = in.read()) {
            if (one < 0) return null;
            bytes.write(one);
        }
        return bytes.toString(StandardCharsets.UTF_8);
    }

    // Answers whether all of it went well.
    static boolean run(JShell shell, String id, String code) throws Exception {
        var analysis = shell.sourceCodeAnalysis();
        String rest = code;
        while (!rest.isBlank()) {
            var piece = analysis.analyzeCompletion(rest);
            String source = piece.completeness().isComplete() && piece.source() != null ? piece.source() : rest;
            boolean last = source == rest || piece.remaining() == null || piece.remaining().isBlank();
            rest = last ? "" : piece.remaining();
            for (SnippetEvent event : shell.eval(source)) {
                if (event.causeSnippet() != null) continue;
                if (event.status() == Snippet.Status.REJECTED) {
                    var words = new StringBuilder();
                    shell.diagnostics(event.snippet()).forEach(one -> words.append(one.getMessage(null)).append('\n'));
                    told(id, "x", "CompilationError\n" + words.toString().trim());
                    return false;
                }
                if (event.exception() instanceof EvalException thrown) {
                    told(id, "x", thrown.getExceptionClassName() + "\n" + thrown.getMessage());
                    return false;
                }
                if (event.exception() != null) {
                    told(id, "x", event.exception().getClass().getSimpleName() + "\n" + event.exception().getMessage());
                    return false;
                }
                boolean shows = event.snippet() instanceof ExpressionSnippet || event.snippet().subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND;
                if (last && shows && event.value() != null) told(id, "r", event.value());
            }
        }
        return true;
    }

    public static void main(String[] args) throws Exception {
        var in = new BufferedInputStream(System.in);
        var shell = JShell.builder().out(out).err(err).in(InputStream.nullInputStream()).build();
        for (String name : List.of("java.io.*", "java.math.*", "java.net.*", "java.nio.file.*", "java.util.*", "java.util.concurrent.*", "java.util.function.*", "java.util.regex.*", "java.util.stream.*"))
            shell.eval("import " + name + ";");
        var environment = new TreeMap<>(System.getenv());
        environment.keySet().removeAll(System.getProperties().stringPropertyNames());
        properties(shell, environment);
        // A stop is asked for by a signal, and given by a hook: the thread that runs the code is this one.
        sun.misc.Signal.handle(new sun.misc.Signal("INT"), signal -> {
            stopped = true;
            shell.stop();
        });
        out.print("{\"type\":\"ready\"}\n");
        out.flush();
        int count = 0;
        for (String head = line(in); head != null; head = line(in)) {
            String[] words = head.split(" ");
            String id = words[1];
            var given = new TreeMap<String, String>();
            var before = new TreeMap<String, String>();
            for (int left = Integer.parseInt(words[3]); left > 0; left--) {
                String[] variable = line(in).split("=", 2);
                given.put(variable[0], URLDecoder.decode(variable[1], StandardCharsets.UTF_8));
                before.put(variable[0], environment.get(variable[0]));
            }
            String code = new String(in.readNBytes(Integer.parseInt(words[2])), StandardCharsets.UTF_8);
            mark(err, id + " s");
            mark(out, id + " s " + ++count);
            properties(shell, given);
            stopped = false;
            boolean well = run(shell, id, code);
            if (stopped && well) told(id, "x", "Interrupted\n");
            well &= !stopped;
            properties(shell, before);
            out.flush();
            err.flush();
            mark(out, id + " e " + (well ? 0 : 1));
            mark(err, id + " e");
        }
        shell.close();
    }
}
