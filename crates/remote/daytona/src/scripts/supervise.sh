# The parts of a supervisor. Descriptor 3 tells the script that started it about the end; 7 is the program's standard input.
atoll_open_input() {
  if [ "$atoll_input" != i ]; then exec 7</dev/null; return; fi
  mkfifo "$atoll_d.in"
  exec 9<>"$atoll_d.in" 7<"$atoll_d.in" 8>"$atoll_d.in"
  exec 9<&-
  # It keeps the pipe open; its end is the end of the input.
  sleep 2147483647 >&8 3>&- 4>&- 5>&- 7<&- 8>&- &
  atoll_holder=$!
  echo $atoll_holder >"$atoll_d.holder"
  exec 8>&-
}

atoll_start_timer() {
  [ "$atoll_limit" != - ] || return 0
  (
    exec 3>&- 4>&- 5>&- 7<&-
    sleep "$atoll_limit" &
    echo $! >"$atoll_d.timer"
    # The program may have ended before: its end was written, or even read, and then the files are removed.
    if [ -s "$atoll_d.exit" ] || [ ! -e "$atoll_d.out" ]; then kill -9 $!; fi
    wait $! || exit
    [ -s "$atoll_d.exit" ] && exit
    : >"$atoll_d.late"
    until [ -s "$atoll_d.pid" ]; do sleep 0.02; done
    read -r atoll_pid <"$atoll_d.pid"
    kill -9 "-$atoll_pid" || kill -9 "$atoll_pid"
  ) &
  atoll_timer=$!
}

# The program ended with the status $1. A child of it may keep the streams open: $2 and $3 copy them until then.
atoll_finish() {
  atoll_late=0 atoll_signal=0
  [ -e "$atoll_d.late" ] && atoll_late=1
  [ -s "$atoll_d.sig" ] && read -r atoll_signal <"$atoll_d.sig"
  echo "$1 $atoll_late $atoll_signal" >"$atoll_d.exit"
  if [ "$atoll_limit" != - ]; then
    # A timer that has not started to sleep yet finds the exit, and ends by itself. After the end there is none.
    [ -s "$atoll_d.timer" ] && read -r atoll_sleep <"$atoll_d.timer" && kill -9 "$atoll_sleep"
    wait "$atoll_timer"
  fi
  if [ "$atoll_input" = i ]; then
    kill "$atoll_holder"
    # A call that waits to write goes on.
    mv "$atoll_d.in" "$atoll_d.in.ended"
    : <>"$atoll_d.in.ended"
  fi
  wait "$2" "$3"
  : >"$atoll_d.end"
  echo x >&3
}
