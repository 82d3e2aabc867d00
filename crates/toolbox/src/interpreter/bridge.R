# Between the host and one R context. Runs inside the sandbox.
# In:  a line "x ID LINES VARIABLES", then VARIABLES lines "NAME=value" with the value percent-encoded, then LINES of code.
# Out: what the code writes, between markers: RS ID word ... RS. Words: s COUNT (it begins), r (a result follows), x (a
#      mistake follows: its class, a line break, its words), q (that was all of it), e CODE (the end).
local({
  cat("{\"type\":\"ready\"}\n")
  count <- 0L
  mark <- function(...) { cat("\036", paste(...), "\036", sep = ""); flush(stdout()) }
  aside <- function(...) cat("\036", paste(...), "\036", sep = "", file = stderr())
  told <- function(id, word, text) { mark(id, word); cat(text); mark(id, "q") }
  run <- function(id, code) {
    expressions <- parse(text = code, keep.source = FALSE)
    last <- length(expressions)
    for (at in seq_along(expressions)) {
      value <- withVisible(eval(expressions[[at]], globalenv()))
      if (value$visible && at < last) print(value$value)
      if (value$visible && at == last)
        told(id, "r", paste(utils::capture.output(print(value$value)), collapse = "\n"))
    }
  }
  failed <- function(id, kind, words) { told(id, "x", paste0(kind, "\n", words)); 1L }
  repeat {
    line <- readLines(con, 1L)
    if (length(line) == 0L) quit("no")
    words <- strsplit(line, " ", fixed = TRUE)[[1L]]
    id <- words[[2L]]
    given <- readLines(con, as.integer(words[[4L]]))
    code <- readLines(con, as.integer(words[[3L]]))
    names <- sub("=.*", "", given)
    values <- vapply(sub("^[^=]*=", "", given), utils::URLdecode, "", USE.NAMES = FALSE)
    before <- Sys.getenv(names, unset = NA, names = TRUE)
    if (length(names)) do.call(Sys.setenv, stats::setNames(as.list(values), names))
    count <- count + 1L
    aside(id, "s")
    mark(id, "s", count)
    code <- tryCatch(
      { run(id, code); 0L },
      error = function(e) failed(id, class(e)[[1L]], conditionMessage(e)),
      interrupt = function(e) failed(id, "interrupt", "interrupted")
    )
    for (name in names) {
      old <- before[[name]]
      if (is.na(old)) Sys.unsetenv(name) else do.call(Sys.setenv, stats::setNames(list(old), name))
    }
    mark(id, "e", code)
    aside(id, "e")
  }
})
