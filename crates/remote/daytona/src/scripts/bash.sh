# For bash 5.1 and newer: the supervisor is a copy of this shell, and needs no program beside the two that copy the output.
atoll_supervise() {
  exec 3>&1 >/dev/null
  echo $BASHPID >"$atoll_d.sup"
  exec 4> >(exec cat >>"$atoll_d.out" 3>&-)
  atoll_copy_out=$!
  exec 5> >(exec cat >>"$atoll_d.err" 3>&- 4>&-)
  atoll_copy_err=$!
  atoll_open_input
  # With job control the program has a process group of its own, and ignores no signal. With `exec` no builtin takes its place.
  set -m
  exec -- "$@" <&7 >&4 2>&5 3>&- 4>&- 5>&- 7<&- &
  atoll_pid=$!
  exec 4>&- 5>&- 7<&-
  echo $atoll_pid >"$atoll_d.pid"
  atoll_start_timer
  # Without job control `wait` returns only at the end. `wait -f` would do the same, but can go round for ever in bash 5.2.
  set +m
  wait $atoll_pid
  atoll_finish $? $atoll_copy_out $atoll_copy_err
}

atoll_begin() {
  set -m
  coproc atoll_supervise "$@"
  atoll_forget
  read -r -t 0.1 -u "${COPROC[0]}" atoll_x
  set +m
  atoll_report
}

# Output without NUL bytes, of moderate length, as it is. Bytes that are no UTF-8 do not survive the answer: the caller sees that.
atoll_text() {
  local LC_ALL=C IFS= atoll_out= atoll_err=
  [ ! -s "$atoll_d.out" ] || ! read -r -d '' -n 65537 atoll_out <"$atoll_d.out" || return
  [ ! -s "$atoll_d.err" ] || ! read -r -d '' -n 65537 atoll_err <"$atoll_d.err" || return
  printf 'O %s\n%s\nE %s\n%s\n' ${#atoll_out} "$atoll_out" ${#atoll_err} "$atoll_err"
}
