# install.mk — what is put where: make install, uninstall, deb. Included by the Makefile.
#
#   make install PREFIX=/usr/local      DESTDIR=dir puts everything below dir, where packages are made
#   make uninstall                      the same variables; takes away these files, and folders that are then empty and are ours alone
#
# Nothing outside PREFIX is written, so no configuration: share/doc/cygnet/examples has one to copy. Models are never touched.

PREFIX     ?= /usr/local
BINDIR     ?= $(PREFIX)/bin
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR     ?= $(PREFIX)/share/man
DOCDIR     ?= $(PREFIX)/share/doc/cygnet
UNITDIR    ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
TMPFILESDIR ?= $(PREFIX)/lib/tmpfiles.d
COMPLETIONDIR ?= $(PREFIX)/share/bash-completion/completions

# One word for each file: mode:source:where. MADE is what the variables above are written into, made anew each time.
MADE := $(BUILD)/installed
file_in = $(foreach f,$(3),$(1):$(f):$(2)/$(notdir $(f)))
INSTALLED = \
  755:$(BUILD)/cygnet:$(BINDIR)/cygnet \
  644:include/cygnet.h:$(INCLUDEDIR)/cygnet.h \
  644:$(BUILD)/libcygnet.a:$(LIBDIR)/libcygnet.a \
  644:$(BUILD)/$(SOFILE):$(LIBDIR)/$(SOFILE) \
  644:$(MADE)/cygnet.pc:$(LIBDIR)/pkgconfig/cygnet.pc \
  644:$(MADE)/cygnet.service:$(UNITDIR)/cygnet.service \
  644:deploy/sysusers.conf:$(SYSUSERSDIR)/cygnet.conf \
  644:deploy/tmpfiles.conf:$(TMPFILESDIR)/cygnet.conf \
  644:deploy/cygnet.bash:$(COMPLETIONDIR)/cygnet \
  $(call file_in,644,$(MANDIR)/man1,$(sort $(wildcard man/*.1))) \
  $(call file_in,644,$(DOCDIR),README.md LICENSE) \
  $(call file_in,644,$(DOCDIR)/docs,$(sort $(wildcard docs/*.md))) \
  $(call file_in,644,$(DOCDIR)/docs/models,$(sort $(wildcard docs/models/*.md))) \
  $(call file_in,644,$(DOCDIR)/examples,deploy/haproxy.cfg deploy/nginx.conf deploy/serve.json examples/complete.c examples/complete.py)
LINKS = $(LIBDIR)/$(SONAME) $(LIBDIR)/libcygnet.so
OUR_FOLDERS = $(DOCDIR)/docs/models $(DOCDIR)/docs $(DOCDIR)/examples $(DOCDIR)

part = $(word $(1),$(subst :, ,$(2)))
define newline


endef

.PHONY: install uninstall deb
install: all
	mkdir -p $(MADE)
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@VERSION@|$(VERSION)|; s|@LIBS@|$(LIB_LIBS)|' packaging/cygnet.pc.in > $(MADE)/cygnet.pc
	sed 's|/usr/bin/cygnet|$(BINDIR)/cygnet|' deploy/cygnet.service > $(MADE)/cygnet.service
	$(foreach f,$(INSTALLED),install -D -m$(call part,1,$(f)) $(call part,2,$(f)) $(DESTDIR)$(call part,3,$(f))$(newline)	)
	$(foreach l,$(LINKS),ln -sf $(SOFILE) $(DESTDIR)$(l)$(newline)	)
uninstall:
	rm -f $(foreach f,$(INSTALLED),$(DESTDIR)$(call part,3,$(f))) $(addprefix $(DESTDIR),$(LINKS))
	-@rmdir $(addprefix $(DESTDIR),$(OUR_FOLDERS)) 2>/dev/null || true
# PACKAGES=dir: where the packages go
deb: all
	packaging/deb.sh $(BUILD) $(or $(PACKAGES),$(BUILD)/deb)
