# For other POSIX shells. A background command of such a shell ignores SIGINT and SIGQUIT, and passes that on. So the supervisor is
# a foreground command, and this shell is killed where it outlives the answer.
atoll_begin() {
  mkfifo "$atoll_d.o" "$atoll_d.e" || exit 95
  atoll_forget
  atoll_setsid=
  command -v setsid >/dev/null && atoll_setsid=setsid
  {
    (sleep 0.1; echo t) </dev/null &
    exec $atoll_setsid /bin/sh -c "$atoll_supervisor" atoll \
      "$atoll_d" "$atoll_input" "$atoll_limit" "$atoll_setsid" "$@" </dev/null
  } | {
    read -r atoll_x
    atoll_report
    [ "$atoll_x" = x ] || kill -9 $$
  }
}

atoll_text() { return 1; }
