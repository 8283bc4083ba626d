#!/bin/sh
# Spark needs Java 17 or newer: say so before anything is installed or started.
java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
hint='Install it: apt-get install openjdk-17-jre-headless (Debian, Ubuntu) or brew install openjdk@17 (macOS).'
if ! command -v "$java" >/dev/null 2>&1; then
  printf 'Unavailable: Strandline needs Java 17 or newer, and no java was found.\n%s\n' "$hint" >&2
  exit 1
fi
major=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
if [ "${major:-0}" -lt 17 ]; then
  printf 'Unavailable: Strandline needs Java 17 or newer; %s is version %s.\n%s\n' "$java" "${major:-unknown}" "$hint" >&2
  exit 1
fi
