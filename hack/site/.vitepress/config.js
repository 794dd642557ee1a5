// The site of docs/, which "make site" builds into dist/site. The pages are written for GitHub and
// stay as they are: what the site needs beyond them is derived from them here.
import { createHash } from 'node:crypto'
import { readFileSync, readdirSync } from 'node:fs'
import { basename, dirname, join, posix, resolve } from 'node:path'
import { defineConfig } from 'vitepress'

const home = 'https://github.com/cloud-map-mcs/cloud-map-mcs-controller'
const published = 'https://cloud-map-mcs.github.io/cloud-map-mcs-controller/'
const docs = resolve(import.meta.dirname, '../../../docs')

// The tag of the release that the pages are of, or main, and the path of the site on its server.
const version = process.env.SITE_VERSION || 'main'
const base = process.env.SITE_BASE || '/'

// index returns the path of a page on the site: README.md is the index of its folder.
const index = (path) => path.replace(/README\.md(?=#|$)/, 'index.md')

// link returns the target of a link of a page, whose path is below docs. Files that are no pages are
// in the repository.
function link(page, target) {
  if (/^([a-z]+:|#)/.test(target)) return target
  const [path, anchor] = target.split('#')
  const file = posix.join('docs', posix.dirname(page), path)
  if (!file.startsWith('docs/') || !file.endsWith('.md')) {
    return `${home}/blob/${version}/${file}${anchor ? '#' + anchor : ''}`
  }
  return index(target)
}

// landing returns the first page: README.md of the repository, with the table of contents of docs in
// place of its section about the documentation.
function landing(contents) {
  const readme = readFileSync(resolve(docs, '../README.md'), 'utf8')
  const section = /^## Documentation\n[^]*?(?=^## )/m
  if (!section.test(readme)) throw new Error('README.md has no section "## Documentation" before another one')
  const moved = readme.replace(section, '').replace(/(\]\(|\]: )(?!#|[a-z]+:)/g, '$1../').replaceAll('../docs/', '')
  return moved + '\n' + contents.replace(/^#/gm, '##')
}

// slug returns the anchor of a heading as on GitHub.
const slug = (title) => title.trim().toLowerCase().replace(/[^\p{L}\p{N}_ -]/gu, '').replaceAll(' ', '-')

// title returns the first heading of a page.
function title(path) {
  const heading = readFileSync(join(docs, path), 'utf8').match(/^# (.*)/m)
  if (!heading) throw new Error(`docs/${path} has no title: begin it with "# Title"`)
  return heading[1].replaceAll('`', '')
}

// item returns the entry of a page in the navigation. Below a README.md are the pages beside it.
function item(path) {
  if (path.startsWith('..')) return { text: title(path), link: link('README.md', path) }
  const entry = { text: title(path), link: '/' + index(path).replace(/index.md$/, '') }
  const folder = dirname(path)
  const pages = readdirSync(join(docs, folder)).filter((f) => f.endsWith('.md') && f !== 'README.md')
  if (basename(path) === 'README.md' && pages.length > 0) {
    entry.collapsed = true
    entry.items = pages.sort().map((f) => item(posix.join(folder, f)))
  }
  return entry
}

// sidebar returns the navigation: the sections and lists of docs/README.md.
function sidebar() {
  const sections = []
  let list
  for (const line of readFileSync(join(docs, 'README.md'), 'utf8').split('\n')) {
    if (line.startsWith('## ')) {
      list = []
      sections.push({ text: line.slice(3), items: list })
    } else if (list && /^\w.*:$/.test(line)) {
      list = []
      sections.at(-1).items.push({ text: line.slice(0, -1), items: list })
    } else if (list && line.startsWith('- ')) {
      list.push(...[...line.matchAll(/\]\(([^)]+)\)/g)].map((m) => item(m[1])))
    }
  }
  return sections
}

// vue is a plugin of the build. Imports of Vue are left to Node.js, which finds it when the build
// runs the pages: there is none beside the pages, in docs/.
const vue = {
  name: 'vue',
  enforce: 'pre',
  resolveId: (id, from, { ssr }) => (ssr && /^vue(\/|$)/.test(id) ? { id, external: true } : undefined),
}

// policy returns the page with a Content-Security-Policy: nothing is loaded from other servers, and
// no script runs but those of the build.
function policy(html) {
  const inline = [...html.matchAll(/<script(?![^>]* src=)[^>]*>([^]*?)<\/script>/g)]
  const hashes = inline.map((m) => `'sha256-${createHash('sha256').update(m[1]).digest('base64')}'`)
  const text = `default-src 'self'; script-src 'self' ${hashes.join(' ')}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; form-action 'none'; object-src 'none'`
  return html.replace('<meta charset="utf-8">', `$&\n    <meta http-equiv="Content-Security-Policy" content="${text}">`)
}

export default defineConfig({
  title: 'Cloud Map MCS Controller',
  description: 'Use a Kubernetes Service from other clusters by its DNS name',
  base,
  srcDir: docs,
  outDir: resolve(docs, '../dist/site', '.' + base),
  cacheDir: resolve(docs, '../dist/site-cache'),
  rewrites: index,
  // The index of the search is one chunk.
  vite: { plugins: [vue], build: { chunkSizeWarningLimit: 2000 } },
  head: [['link', { rel: 'icon', href: 'data:,' }]],
  metaChunk: true,
  transformHtml: policy,
  markdown: {
    anchor: { slugify: slug },
    attrs: { disable: true },
    config(md) {
      md.core.ruler.before('normalize', 'landing', (state) => {
        if (state.env.relativePath === 'index.md') state.src = landing(state.src)
      })
      const open = md.renderer.rules.link_open
      md.renderer.rules.link_open = (tokens, i, options, env, self) => {
        tokens[i].attrSet('href', link(env.relativePath, tokens[i].attrGet('href')))
        return open(tokens, i, options, env, self)
      }
    },
  },
  themeConfig: {
    siteTitle: 'Cloud Map MCS',
    search: { provider: 'local' },
    sidebar: sidebar(),
    outline: [2, 3],
    nav: [{
      text: version,
      items: [
        { text: 'Latest release', link: published },
        { text: 'main, on GitHub', link: `${home}/tree/main/docs` },
        { text: 'All releases', link: `${home}/releases` },
      ],
    }],
    socialLinks: [{ icon: 'github', link: home }],
    editLink: { pattern: `${home}/blob/${version}/docs/:path`, text: 'This page on GitHub' },
  },
})
